use super::*;
use heddle_rpcrdma::rpc::Procedure;

fn ask(bind: &Rpcbind, number: u32, arguments: Body) -> Result<Body, Refusal> {
    let procedure = Procedure { program: PROGRAM, version: 4, procedure: number };
    bind.carry_out(&Request::of_nobody(procedure, arguments))
}

fn entry(program: u32, version: u32, address: &str) -> Entry {
    Entry::rdma(program, version, address.parse().unwrap())
}

fn body(entry: &Entry) -> Body {
    let mut body = Body::new();
    entry.encode(&mut body).unwrap();
    body
}

#[test]
fn test_universal_addresses_are_read_as_they_are_written() {
    for (address, text) in
        [("10.0.0.1:20049", "10.0.0.1.78.81"), ("[fe80::7]:111", "fe80::7.0.111")]
    {
        let address: SocketAddr = address.parse().unwrap();
        assert_eq!(universal_address(address), text);
        assert_eq!(parse_universal_address(text), Some(address));
    }
    for text in ["", "1", "10.0.0.1", "10.0.0.1.1", "10.0.0.1.1.256", "10.0.0.1.+1.1", "x.1.1"] {
        assert_eq!(parse_universal_address(text), None, "{text}");
    }
}

#[test]
fn test_rpcbind_returns_address_of_program_for_requested_transport() {
    let entries = vec![
        entry(100_003, 3, "10.0.0.1:20049"),
        entry(100_003, 4, "10.0.0.1:20050"),
        entry(100_003, 3, "[::1]:20049"),
    ];
    let bind = Rpcbind { entries };
    for (asked, want) in [
        (entry(100_003, 4, "0.0.0.0:0"), "10.0.0.1.78.82"),
        (entry(100_003, 2, "0.0.0.0:0"), "10.0.0.1.78.81"),
        (entry(100_003, 4, "[::]:0"), "::1.78.81"),
        (entry(100_005, 3, "0.0.0.0:0"), ""),
    ] {
        let results = ask(&bind, procedure::GETADDR, body(&asked)).unwrap();
        assert_eq!(results.reader().opaque(100).unwrap().to_vec(), want.as_bytes());
    }
    let dump = ask(&bind, procedure::DUMP, Body::new()).unwrap();
    let mut r = dump.reader();
    for entry in &bind.entries {
        assert_eq!((r.flag(), Entry::decode(&mut r)), (Ok(true), Ok(entry.clone())));
    }
    assert_eq!((r.flag(), r.finish()), (Ok(false), Ok(())));
}

#[test]
fn test_rpcbind_refuses_changes_by_peers_and_malformed_arguments() {
    let bind = Rpcbind { entries: vec![entry(100_003, 3, "10.0.0.1:20049")] };
    for number in [procedure::SET, procedure::UNSET] {
        let results = ask(&bind, number, body(&bind.entries[0])).unwrap();
        assert_eq!(results.bytes(), [0; 4]);
    }
    let whole = body(&bind.entries[0]);
    for len in (0..whole.bytes().len()).step_by(4) {
        let cut = Body::of(whole.bytes()[..len].to_vec()).unwrap();
        assert_eq!(ask(&bind, procedure::GETADDR, cut).unwrap_err(), Refusal::GarbageArgs);
    }
    let mut more = whole;
    more.u32(0).unwrap();
    assert_eq!(ask(&bind, procedure::GETADDR, more).unwrap_err(), Refusal::GarbageArgs);
    assert_eq!(ask(&bind, 99, Body::new()).unwrap_err(), Refusal::ProcUnavail);
}
