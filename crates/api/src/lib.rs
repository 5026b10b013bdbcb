//! The custom resources of Stateward. Types, defaults, validation rules, names. No I/O.
