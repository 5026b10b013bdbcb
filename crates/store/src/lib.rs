//! Where backups live.
