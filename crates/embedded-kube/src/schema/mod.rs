//! Pure functions over JSON objects. No I/O, no clocks.
