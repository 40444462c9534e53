//! Tests of the QP.
