//! A router between the hosts.

use heddle_base::Sum;

/// Returns the frame by which a router reports that its next link carries `mtu` bytes and not `frame`.
pub fn router_report(frame: &[u8], mtu: u16) -> Vec<u8> {
    if frame[12..14] == [0x86, 0xdd] {
        return too_big(frame, mtu);
    }
    let mut icmp = vec![3, 4, 0, 0, 0, 0];
    icmp.extend(mtu.to_be_bytes());
    icmp.extend(&frame[14..42]);
    let sum = Sum::of(&icmp).complement();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let total = u16::try_from(20 + icmp.len()).unwrap().to_be_bytes();
    let mut ip = vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 254];
    ip.extend(&frame[26..30]);
    let sum = Sum::of(&ip).complement();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let station = [2, 0, 0, 0, 0, 0xfe, 8, 0];
    [&frame[6..12], &station, &ip, &icmp].concat()
}

/// Returns the same report over IPv6 (RFC 4443 section 3.2).
fn too_big(frame: &[u8], mtu: u16) -> Vec<u8> {
    let mut icmp = vec![2, 0, 0, 0, 0, 0];
    icmp.extend(mtu.to_be_bytes());
    icmp.extend(&frame[14..frame.len().min(14 + 1232)]);
    let len = u16::try_from(icmp.len()).unwrap();
    let router = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfe];
    let ends = [&router, &frame[22..38]].concat();
    let sum = Sum::of(&ends).add_u16(58).add_u16(len).plus(Sum::of(&icmp)).complement();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let len = len.to_be_bytes();
    let ip = [0x60, 0, 0, 0, len[0], len[1], 58, 64];
    [&frame[6..12], &[2, 0, 0, 0, 0, 0xfe, 0x86, 0xdd], &ip, &ends[..], &icmp].concat()
}
