//! IPv4, TCP, ARP and ICMP headers.

use crate::Seeds;
use crate::tcp_stack::conversation;

pub fn run(data: &[u8]) -> bool {
    heddle_tcp::fuzz::wire(data)
}

pub fn seeds() -> Seeds {
    let mut all = Seeds::new();
    for (n, frame) in conversation().iter().enumerate() {
        let (_, packet) = frame.split_at(14);
        if frame[12..14] == [8, 0] {
            all.push((format!("tcp-{n}"), packet[20..].to_vec()));
            all.push((format!("ip-{n}"), packet[..20].to_vec()));
        } else {
            all.push((format!("arp-{n}"), packet.to_vec()));
        }
    }
    // An echo request, with its checksum.
    all.push(("icmp".into(), vec![8, 0, 0xf7, 0xfd, 0, 1, 0, 1]));
    all
}
