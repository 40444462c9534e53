use super::*;
use crate::document::{Call, VERSION, read_call, to_line};

#[test]
fn test_every_request_parses_back_from_its_line() {
    let address = || "10.0.0.1:1".to_owned();
    let filter = ConnsArgs { port: Some(1), ..ConnsArgs::default() };
    let listen = |forward: Option<Forward>| ListenAdd {
        address: address(),
        service: if forward.is_none() { "cmtime".into() } else { String::new() },
        infiniband: forward.is_none(),
        congestion: forward.is_none().then(|| "dctcp".into()),
        ecn: None,
        pacing: forward.is_some().then(|| "off".into()),
        forward,
    };
    let over = "iwarp".into();
    let forward = Forward { to: address(), over, connections: Some(1), timeout_ms: None };
    for (request, changes) in [
        (Request::Status, false),
        (Request::Conns(None), false),
        (Request::Conns(Some(filter)), false),
        (Request::Mrs(Some(MrsArgs { stags: true })), false),
        (Request::Ports, false),
        (Request::Stats, false),
        (Request::ListenAdd(listen(None)), true),
        (Request::ListenAdd(listen(Some(forward.clone()))), true),
        (Request::ListenDel(ListenDel { address: address() }), true),
        (Request::ConnKill(ConnKill { conn: u64::MAX, in_order: true }), true),
        (Request::ApplicationKill(ApplicationKill { application: 7 }), true),
        (Request::Reload, true),
        (Request::LogLevel(LogLevel { level: "info".into() }), true),
        (Request::Drain(None), true),
        (Request::Drain(Some(DrainArgs { end: Some(End::InOrder) })), true),
        (Request::Undrain, true),
        (Request::Log, true),
        (Request::Config, false),
        (Request::ConfigDiff, false),
    ] {
        let line = to_line(&Call { v: VERSION, id: 1, request: &request });
        let back: (u64, Request) = read_call(&line).unwrap();
        assert_eq!(back, (1, request.clone()));
        assert_eq!(request.changes(), changes, "{request:?}");
    }
}

#[test]
fn test_every_number_of_every_request_is_bounded() {
    use crate::bounds::{operations, unbounded};
    let number = "after limit port worker connections timeout_ms conn application";
    let numbers: Vec<_> = number.split(' ').collect();
    let forward = r#"{"to":"","over":"","connections":1,"timeout_ms":1}"#;
    let samples = [
        ("status", "null".into()),
        ("conns", r#"{"after":1,"limit":1,"port":1,"worker":1}"#.into()),
        ("mrs", r#"{"stags":true}"#.into()),
        ("ports", "null".into()),
        ("stats", "null".into()),
        ("listen-add", format!(r#"{{"address":"","forward":{forward}}}"#)),
        ("listen-del", r#"{"address":""}"#.into()),
        ("conn-kill", r#"{"conn":1}"#.into()),
        ("application-kill", r#"{"application":1}"#.into()),
        ("reload", "null".into()),
        ("log-level", r#"{"level":""}"#.into()),
        ("drain", r#"{"end":"reset"}"#.into()),
        ("undrain", "null".into()),
        ("log", "null".into()),
        ("config", "null".into()),
        ("config-diff", "null".into()),
    ];
    let ops: Vec<_> = samples.iter().map(|(op, _)| (*op).to_owned()).collect();
    assert_eq!(ops, operations::<Request>());
    let mut seen = 0;
    for (op, args) in samples {
        let line = format!(r#"{{"v":1,"id":1,"op":"{op}","args":{args}}}"#);
        read_call::<Request>(line.as_bytes()).unwrap();
        seen += numbers.iter().filter(|n| args.contains(&format!("\"{n}\":1"))).count();
        let call = serde_json::from_str(&line).unwrap();
        assert_eq!(unbounded(Request::BOUNDS, &call), [""; 0]);
    }
    assert_eq!(seen, numbers.len());
    let all = br#"{"v":1,"id":1,"op":"conns","args":{"limit":18446744073709551615}}"#;
    let (_, Request::Conns(Some(cut))) = read_call(all).unwrap() else { panic!() };
    assert_eq!(cut.limit, Some(MAX_CONNS));
}

#[test]
fn test_request_may_omit_default_arguments_but_not_add_unknown_ones() {
    for op in ["conns", "mrs"] {
        let line = format!("{{\"v\":1,\"id\":1,\"op\":\"{op}\"}}");
        assert!(read_call::<Request>(line.as_bytes()).is_ok(), "{line}");
        let line = format!("{{\"v\":1,\"id\":1,\"op\":\"{op}\",\"args\":{{\"limits\":1}}}}");
        assert!(read_call::<Request>(line.as_bytes()).is_err(), "{line}");
    }
    // A client that knows of services alone sends no other fields.
    let add =
        b"{\"v\":1,\"id\":1,\"op\":\"listen-add\",\"args\":{\"address\":\"a\",\"service\":\"s\"}}";
    let add: (u64, Request) = read_call(add).unwrap();
    let (address, service) = ("a".into(), "s".into());
    let plain = ListenAdd {
        address,
        service,
        infiniband: false,
        congestion: None,
        ecn: None,
        pacing: None,
        forward: None,
    };
    assert_eq!(add.1, Request::ListenAdd(plain));
    let kill: (u64, Request) =
        read_call(b"{\"v\":1,\"id\":1,\"op\":\"conn-kill\",\"args\":{\"conn\":9}}").unwrap();
    assert_eq!(kill.1, Request::ConnKill(ConnKill { conn: 9, in_order: false }));
}
