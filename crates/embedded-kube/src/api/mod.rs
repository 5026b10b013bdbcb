//! The API server: storage, requests, watches, authentication and authorization.
