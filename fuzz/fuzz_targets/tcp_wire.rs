//! IPv4, TCP, ARP and ICMP headers.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| heddle_tcp::fuzz::wire(data));
