//! A TCP stack: frames from anybody, and what its user and the clock do in between.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| heddle_tcp::fuzz::stack(data));
