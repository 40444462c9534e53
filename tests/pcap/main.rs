//! Captures, with Wireshark as the judge.

mod recorded;
