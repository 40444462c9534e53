//! The appliance reads another file while connections run.

use crate::lab::{Appliance, listen};

fn listeners(a: &Appliance) -> Vec<String> {
    let status = a.ask(&["status"]);
    let all = status["listeners"].as_array().unwrap().iter();
    let all = all.filter(|l| l["state"] == "listening");
    all.map(|l| l["address"].as_str().unwrap().into()).collect()
}

#[test]
fn test_reload_exchanges_listeners_while_a_connection_continues() {
    let a = Appliance::start(&listen(7174, "rping"));
    let mut rping = a.rping(7174);
    a.assert_moves();
    a.write(&(listen(7174, "rping") + &listen(7175, "sink")));
    let done = a.ask(&["reload"]);
    assert_eq!(done["applied"], serde_json::json!(["sink on 10.77.0.1:7175"]));
    assert_eq!(listeners(&a), ["10.77.0.1:7174", "10.77.0.1:7175"]);
    // A signal gets no answer, so wait for its effect.
    a.write(&listen(7176, "perf"));
    a.signal(libc::SIGHUP);
    let until = std::time::Instant::now() + crate::lab::PATIENCE;
    while listeners(&a) != ["10.77.0.1:7176"] {
        assert!(std::time::Instant::now() < until, "{:?}", listeners(&a));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // The appliance has removed the listener, and the connection goes on.
    let before = a.ask(&["conns"])["conns"][0]["tcp"]["received"].as_u64().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    rping.assert_runs();
    assert!(a.ask(&["conns"])["conns"][0]["tcp"]["received"].as_u64().unwrap() > before);
    assert_eq!(a.ask(&["status"])["last_reload"]["error"], serde_json::Value::Null);
}

#[test]
fn test_reload_refuses_impossible_change_as_a_whole_with_reason() {
    let a = Appliance::start(&listen(7174, "rping"));
    let mut rping = a.rping(7174);
    a.assert_moves();
    // The file changes one thing that could change, and two that cannot.
    a.write(&format!("[memory]\nregistered = 7\n[dpdk]\nmemory = 99\n{}", listen(7175, "sink")));
    let (status, text) = a.refusal(&["reload"]);
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("memory cannot change while it runs: memory is taken"), "{text}");
    assert!(text.contains("dpdk cannot change while it runs"), "{text}");
    assert_eq!(listeners(&a), ["10.77.0.1:7174"]);
    a.write_as_it_is("[log]\nlevel = \"loud\"\n");
    let (_, text) = a.refusal(&["reload"]);
    assert!(text.contains("heddle.toml:2:9: log.level: 'loud' is none of"), "{text}");
    let last = a.ask(&["status"])["last_reload"]["error"].clone();
    assert!(last.as_str().unwrap().contains("'loud'"), "{last}");
    rping.assert_runs();
    a.assert_moves();
}

#[test]
fn test_reload_adds_and_removes_address_without_ending_other_connections() {
    let a = Appliance::start(&listen(7174, "rping"));
    let mut rping = a.rping(7174);
    a.assert_moves();
    let with = |addr: &str, more: &str| {
        let path = a.socket();
        let text = crate::lab::file(path.parent().unwrap(), more);
        a.write_as_it_is(&text.replace("10.77.0.1/16", addr));
    };
    let other = "[[listen]]\naddress = \"10.77.0.77:7174\"\nservice = \"rping\"\n";
    let both = listen(7174, "rping") + other;
    with("10.77.0.1/16\", \"10.77.0.77/16", &both);
    let done = a.ask(&["reload"]);
    let applied = serde_json::json!(["addresses and routes", "rping on 10.77.0.77:7174"]);
    assert_eq!((&done["applied"], &done["failed"]), (&applied, &serde_json::json!([])));
    assert_eq!(listeners(&a).len(), 2);
    // The peers' kernel resolves the new address.
    let addr = "10.77.0.77:7174".parse().unwrap();
    let connect =
        || a.lab.peers.run(|| std::net::TcpStream::connect_timeout(&addr, crate::lab::PATIENCE));
    let tcp = connect().expect("somebody listens there");
    let timeout = Some(crate::lab::PATIENCE);
    tcp.set_read_timeout(timeout).unwrap();
    with("10.77.0.1/16", &listen(7174, "rping"));
    a.ask(&["reload"]);
    assert_eq!(listeners(&a), ["10.77.0.1:7174"]);
    let read = std::io::Read::read(&mut &tcp, &mut [0; 8]);
    assert!(read.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset), "it is reset");
    rping.assert_runs();
    a.assert_moves();
}

/// Returns true if a program answers at the address.
fn answers(addr: &str) -> bool {
    let Ok(mut s) = std::net::TcpStream::connect(addr) else { return false };
    s.set_read_timeout(Some(crate::lab::PATIENCE)).unwrap();
    std::io::Write::write_all(&mut s, b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut s, &mut text).unwrap();
    text.starts_with("HTTP/1.1 200 ") || panic!("{text}")
}

/// The new listener must exist before the old one goes; an unavailable address leaves everything as
/// it is.
#[test]
fn test_metrics_move_to_another_address() {
    let a = Appliance::start("[metrics]\nlisten = \"127.0.0.1:9184\"\n");
    // The appliance has a network of its own, so no other program has these ports.
    let up = || std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(a.lab.server.run(up).unwrap().success());
    let answers = |addr: &'static str| a.lab.server.run(move || answers(addr));
    let listen_at = |addr: &str| a.write(&format!("[metrics]\nlisten = \"{addr}\"\n"));
    assert!(answers("127.0.0.1:9184"));
    listen_at("127.0.0.1:9185");
    let done = a.ask(&["reload"]);
    assert_eq!(done["applied"], serde_json::json!(["metrics on 127.0.0.1:9185"]));
    assert!(answers("127.0.0.1:9185") && !answers("127.0.0.1:9184"));
    // The listener moves from one address to all addresses, at the same port.
    listen_at("0.0.0.0:9185");
    assert_eq!(a.ask(&["reload"])["failed"], serde_json::json!([]));
    assert!(answers("127.0.0.2:9185"));
    // Another process has the port: the reload changes nothing, not even the other things in the
    // file.
    let taken = a.lab.server.run(|| std::net::TcpListener::bind("127.0.0.1:9186").unwrap());
    a.write(&format!("[metrics]\nlisten = \"127.0.0.1:9186\"\n{}", listen(7175, "sink")));
    let (_, text) = a.refusal(&["reload"]);
    assert!(text.contains("metrics on 127.0.0.1:9186: Address already in use"), "{text}");
    assert_eq!(listeners(&a), [""; 0]);
    assert!(answers("127.0.0.2:9185"));
    drop(taken);
    // The address is not this host's, while the port is the current one.
    listen_at("192.0.2.1:9185");
    let (_, text) = a.refusal(&["reload"]);
    assert!(text.contains("metrics on 192.0.2.1:9185"), "{text}");
    assert!(answers("127.0.0.2:9185"));
    a.write("");
    assert_eq!(a.ask(&["reload"])["applied"], serde_json::json!(["no metrics"]));
    assert!(!answers("127.0.0.2:9185"));
}

#[test]
fn test_log_format_changes_on_reload() {
    let mut a = Appliance::start("[log]\nlevel = \"info\"\n");
    a.ask(&["reload"]);
    a.write("[log]\nlevel = \"info\"\nformat = \"json\"\n");
    assert_eq!(a.ask(&["reload"])["applied"], serde_json::json!(["log as JSON"]));
    a.signal(libc::SIGTERM);
    assert!(a.wait(crate::lab::PATIENCE).is_some());
    let log = a.log();
    let lines: Vec<_> = log.lines().filter(|l| l.contains("was read anew")).collect();
    let [before, after] = lines[..] else { panic!("{log}") };
    assert!(serde_json::from_str::<serde_json::Value>(before).is_err(), "{before}");
    let after: serde_json::Value = serde_json::from_str(after).unwrap();
    assert_eq!(after["level"], "INFO");
}

/// The client made this connection before any keepalive was configured, and sent nothing on it.
#[test]
fn test_established_connection_gets_keepalives_after_reload() {
    let more = "[limits]\nfirst-message = \"0s\"\n".to_owned() + &listen(7174, "rping");
    let a = Appliance::start(&format!("[tcp]\nkeepalive = \"0s\"\n{more}"));
    let mut peer = a.idle_peer(7174);
    a.conns_of("rping");
    let keepalives = || {
        let stats = a.ask(&["stats"]);
        let mut all = stats["counters"].as_array().unwrap().iter();
        let found = all.find(|c| c["part"] == "tcp" && c["name"] == "keepalives");
        found.unwrap()["value"].as_u64().unwrap()
    };
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(keepalives(), 0);
    a.write(&format!("[tcp]\nkeepalive = \"1s\"\n{more}"));
    assert_eq!(a.ask(&["reload"])["applied"], serde_json::json!(["keepalive after 1s"]));
    let until = std::time::Instant::now() + crate::lab::PATIENCE;
    let wait = |what: &str, there: &dyn Fn() -> bool| {
        while !there() {
            assert!(std::time::Instant::now() < until, "{what}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    wait("it is asked again and again", &|| keepalives() > 4);
    peer.assert_runs();
    a.conns_of("rping");
    // SAFETY: the process is our child and we have not waited for it, so the number still belongs
    // to it.
    let stopped = unsafe { libc::kill(peer.0.id().try_into().unwrap(), libc::SIGSTOP) };
    assert_eq!(stopped, 0);
    let none = || a.ask(&["conns"])["conns"].as_array().unwrap().is_empty();
    wait("a peer that answers no more is given up", &none);
}
