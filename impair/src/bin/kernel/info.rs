//! The `TCP_INFO` of a connection: the report of the kernel's TCP.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use serde_json::{Map, Value};

/// The fields of the kernel's `struct tcp_info` that the reports have: their place and their name.
/// Linux 6.18 and later have all of them. Kernels only ever add fields at the end.
const FIELDS: [(usize, &str); 14] = [
    (100, "total_retrans"),
    (152, "data_segs_in"),
    (156, "data_segs_out"),
    (192, "delivered"),
    (196, "delivered_ce"),
    (216, "dsack_dups"),
    (224, "rcv_ooopack"),
    (248, "received_ce"),
    (252, "delivered_e1_bytes"),
    (256, "delivered_e0_bytes"),
    (260, "delivered_ce_bytes"),
    (264, "received_e1_bytes"),
    (268, "received_e0_bytes"),
    (272, "received_ce_bytes"),
];
/// The place of the bits that describe accurate ECN, and these bits from the lowest on.
const ECN: usize = 276;
const ECN_BITS: [(u32, &str); 3] =
    [(2, "ecn_mode"), (2, "accecn_opt_seen"), (4, "accecn_fail_mode")];
/// The place of the bits of the agreed options, and those of ECN.
const OPTIONS: usize = 5;
const HAS_ECN: u8 = 0x08;
const SAW_ECT: u8 = 0x10;
/// Room for what kernels to come may add.
const ROOM: u16 = 1024;

/// Returns what the kernel reports of a connection. A kernel that lacks a field leaves it out.
///
/// # Errors
/// Fails if the socket is of another kind.
pub(crate) fn of(socket: &impl AsFd) -> io::Result<Value> {
    let mut bytes = [0u8; ROOM as usize];
    let mut len = libc::socklen_t::from(ROOM);
    // SAFETY: the descriptor is borrowed for the call; the pointers are those of the array and of the
    // number of its bytes, and the kernel writes no more than so many.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast(),
            &mut len,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    let len = usize::try_from(len).unwrap_or(0);
    Ok(read(bytes.get(..len).unwrap_or(&bytes)))
}

/// Reads the fields of a `struct tcp_info`.
fn read(info: &[u8]) -> Value {
    let number = |at: usize| {
        let bytes = info.get(at..)?.first_chunk::<4>()?;
        Some(u32::from_ne_bytes(*bytes))
    };
    let mut all = Map::new();
    for (at, name) in FIELDS {
        all.extend(number(at).map(|n| (name.to_owned(), n.into())));
    }
    if let Some(mut bits) = number(ECN) {
        for (width, name) in ECN_BITS {
            all.insert(name.to_owned(), (bits & ((1 << width) - 1)).into());
            bits >>= width;
        }
    }
    if let Some(options) = info.get(OPTIONS) {
        all.insert("has_ecn".to_owned(), (options & HAS_ECN != 0).into());
        all.insert("saw_ect".to_owned(), (options & SAW_ECT != 0).into());
    }
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn test_report_counts_the_segments_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        io::Write::write_all(&mut &client, b"one").unwrap();
        io::Read::read_exact(&mut server, &mut [0; 3]).unwrap();
        assert_eq!(of(&client).unwrap()["data_segs_out"], 1);
        assert_eq!(of(&server).unwrap()["data_segs_in"], 1);
        assert_eq!(of(&server).unwrap()["data_segs_out"], 0);
        assert!(of(&UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
    }

    #[test]
    fn test_report_leaves_out_what_an_older_kernel_lacks() {
        let mut info = [0u8; 280];
        info[OPTIONS] = HAS_ECN;
        info[196] = 7;
        info[ECN] = 2 | 1 << 2 | 5 << 4;
        let all = read(&info);
        assert_eq!(all["delivered_ce"], 7);
        assert_eq!(
            [&all["ecn_mode"], &all["accecn_opt_seen"], &all["accecn_fail_mode"]],
            [2, 1, 5]
        );
        assert_eq!([&all["has_ecn"], &all["saw_ect"]], [true, false]);
        let old = read(&info[..248]);
        assert_eq!(old["delivered_ce"], 7);
        assert!(old.get("received_ce").is_none() && old.get("ecn_mode").is_none());
    }
}
