//! Commands and answers of rdma_cm, compared with the distribution's headers.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command as Process, Stdio};

use heddle_ibverbs::ucma::address::Address;
use heddle_ibverbs::ucma::command::{Command, ConnParam, Descriptor, OptionValue, Written, decode};
use heddle_ibverbs::ucma::errno::Errno;
use heddle_ibverbs::ucma::number::EventKind;
use heddle_ibverbs::ucma::reply::{Ends, Event, Identity, Reply};

use crate::c;

fn program(dir: &Path) -> std::path::PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ibverbs/ucma.c");
    c::compile(&source, dir, &["-D_GNU_SOURCE"])
}

fn bytes(line: &str) -> Vec<u8> {
    let digits: Vec<char> = line.chars().collect();
    let pairs = digits.chunks(2).map(|pair| pair.iter().collect::<String>());
    pairs.map(|pair| u8::from_str_radix(&pair, 16).unwrap()).collect()
}

fn ip(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn param() -> ConnParam {
    ConnParam {
        qp_num: 77,
        private_data: b"abc".to_vec(),
        responder_resources: 5,
        initiator_depth: 6,
    }
}

#[test]
fn test_commands_are_read_as_the_header_lays_them_out() {
    let dir = tempfile::tempdir().unwrap();
    let out = Process::new(program(dir.path())).output().unwrap();
    assert!(out.status.success());
    let (us, peer) = (Address::Ip(ip("10.0.0.1:1111")), Address::Ip(ip("10.0.0.2:2222")));
    let value = OptionValue::new(&[6, 7, 8, 9]);
    let id = 9;
    let want = [
        (Command::CreateId { uid: 1, port_space: 0x106, qp_type: 3 }, 2),
        (Command::DestroyId { id }, 2),
        (Command::Bind { id, addr: us }, 0),
        (Command::Bind { id, addr: us }, 0),
        (Command::ResolveAddr { id, src: us, dst: peer }, 0),
        (Command::ResolveAddr { id, src: us, dst: peer }, 0),
        (Command::ResolveRoute { id }, 0),
        (Command::QueryRoute { id }, 2),
        (Command::QueryAddr { id }, 2),
        (Command::QueryPath { id }, 2),
        (Command::QueryGid { id }, 2),
        (Command::Connect { id, param: param() }, 0),
        (Command::Listen { id, backlog: 8 }, 0),
        (Command::Accept { id, uid: 1, param: Some(param()) }, 0),
        (Command::Reject { id, reason: 28, private_data: b"abc".to_vec() }, 0),
        (Command::Disconnect { id }, 0),
        (Command::InitQpAttr { id, qp_state: 3 }, 2),
        (Command::GetEvent, 2),
        (Command::SetOption { id, level: 0, name: 1, value }, 0),
        (Command::Notify { id }, 0),
        (Command::JoinMcast { id }, 2),
        (Command::JoinMcast { id }, 2),
        (Command::LeaveMcast, 2),
        (Command::MigrateId { id, from: Descriptor(4) }, 2),
    ];
    let lines: Vec<_> = std::str::from_utf8(&out.stdout).unwrap().lines().map(bytes).collect();
    assert_eq!(lines.len(), want.len());
    let mut read = |at: u64, len: usize| {
        assert_eq!((at, len), (6, 4));
        Ok(vec![6, 7, 8, 9])
    };
    for (line, (command, response)) in lines.iter().zip(want) {
        let room = u16::from_ne_bytes([line[6], line[7]]).into();
        let written = Written { command, response, room };
        assert_eq!(decode(line, &mut read).as_ref(), Ok(&written));
        // Every field counts: the service refuses a structure that is a byte short, and an answer
        // without room.
        let short = decode(&line[..line.len() - 1], &mut read);
        assert_eq!(short, Err(Errno::INVAL), "{written:?}");
        if room > 0 {
            let mut tight = line.clone();
            tight[6..8].copy_from_slice(&3u16.to_ne_bytes());
            assert_eq!(decode(&tight, &mut read), Err(Errno::NOSPC), "{written:?}");
        }
    }
}

#[test]
fn test_answers_are_written_as_the_header_lays_them_out() {
    let ends = Ends {
        src: Some(ip("10.0.0.1:1111")),
        dst: Some(ip("10.0.0.2:2222")),
        device: Some(Identity { guid: [1, 2, 3, 4, 5, 6, 7, 8], index: 3 }),
    };
    let kind = EventKind::Rejected;
    let event = Event { uid: 1, id: 9, kind, status: -104, param: param() };
    let answers = [
        Reply::Route(ends),
        Reply::Addr(ends),
        Reply::Path,
        Reply::Gid(ends),
        Reply::QpAttr { state: 1, mask: 41, access: 6 },
        Reply::Event(event),
        Reply::Id(9),
    ];
    let mut text = String::new();
    for answer in answers {
        for byte in answer.encode() {
            write!(text, "{byte:02x}").unwrap();
        }
        text.push('\n');
    }
    let dir = tempfile::tempdir().unwrap();
    let mut child =
        Process::new(program(dir.path())).arg("answers").stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn test_headers_that_make_no_sense_are_refused_as_the_kernel_does() {
    let mut nothing = |_: u64, _: usize| Err(Errno::FAULT);
    let mut try_it = |number: u32, len: u16, room: u16, rest: usize| {
        let mut bytes = number.to_ne_bytes().to_vec();
        bytes.extend(len.to_ne_bytes());
        bytes.extend(room.to_ne_bytes());
        bytes.resize(8 + rest, 0);
        decode(&bytes, &mut nothing).map(|_| ())
    };
    assert_eq!(try_it(23, 0, 0, 0), Err(Errno::INVAL), "no such number");
    assert_eq!(try_it(13, 8, 8, 8), Err(Errno::NOSYS), "no such command");
    assert_eq!(try_it(7, 9, 0, 8), Err(Errno::INVAL), "longer than what was written");
    assert_eq!(try_it(7, 0, 0, 7), Err(Errno::FAULT), "the structure ends outside");
    assert_eq!(try_it(7, 8, 0, 8), Ok(()));
    assert_eq!(try_it(6, 279, 0, 288), Err(Errno::INVAL), "CONNECT before its last field");
    assert_eq!(try_it(6, 288, 0, 288), Err(Errno::INVAL), "parameters that are not valid");
    assert_eq!(try_it(14, 24, 0, 24), Ok(()), "an option without a value");
    assert_eq!(decode(&[0; 7], &mut |_, _| Err(Errno::FAULT)), Err(Errno::INVAL));
}
