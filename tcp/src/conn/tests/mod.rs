//! Tests of a connection.
