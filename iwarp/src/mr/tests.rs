//! Tests of the STag table.
