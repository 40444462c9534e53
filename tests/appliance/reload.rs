//! Another file while connections run.

use crate::lab::{Appliance, listen};

fn listeners(a: &Appliance) -> Vec<String> {
    let status = a.ask(&["status"]);
    let all = status["listeners"].as_array().unwrap().iter();
    let all = all.filter(|l| l["state"] == "listening");
    all.map(|l| l["address"].as_str().unwrap().into()).collect()
}

#[test]
fn test_listeners_are_exchanged_under_a_connection_that_runs_through() {
    let a = Appliance::start(&listen(7174, "rping"));
    let mut rping = a.rping(7174);
    a.assert_moves();
    a.write(&(listen(7174, "rping") + &listen(7175, "sink")));
    let done = a.ask(&["reload"]);
    assert_eq!(done["applied"], serde_json::json!(["sink on 10.77.0.1:7175"]));
    assert_eq!(listeners(&a), ["10.77.0.1:7174", "10.77.0.1:7175"]);
    // By signal, which nobody answers.
    a.write(&listen(7176, "perf"));
    a.signal(libc::SIGHUP);
    let until = std::time::Instant::now() + crate::lab::PATIENCE;
    while listeners(&a) != ["10.77.0.1:7176"] {
        assert!(std::time::Instant::now() < until, "{:?}", listeners(&a));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // Its listener is gone, and it goes on.
    let before = a.ask(&["conns"])["conns"][0]["tcp"]["received"].as_u64().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    rping.assert_runs();
    assert!(a.ask(&["conns"])["conns"][0]["tcp"]["received"].as_u64().unwrap() > before);
    assert_eq!(a.ask(&["status"])["last_reload"]["error"], serde_json::Value::Null);
}

#[test]
fn test_what_cannot_be_is_refused_as_a_whole_with_the_reason() {
    let a = Appliance::start(&listen(7174, "rping"));
    let mut rping = a.rping(7174);
    a.assert_moves();
    // One thing that could change, and two that cannot.
    a.write(&format!("[memory]\nregistered = 7\n[dpdk]\nmemory = 99\n{}", listen(7175, "sink")));
    let (status, text) = a.refusal(&["reload"]);
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("memory cannot change while it runs: memory is taken"), "{text}");
    assert!(text.contains("dpdk cannot change while it runs"), "{text}");
    assert_eq!(listeners(&a), ["10.77.0.1:7174"]);
    a.write_as_it_is("[log]\nlevel = \"loud\"\n");
    let (_, text) = a.refusal(&["reload"]);
    assert!(text.contains("heddle.toml:2:9: 'loud' is none of"), "{text}");
    let last = a.ask(&["status"])["last_reload"]["error"].clone();
    assert!(last.as_str().unwrap().contains("'loud'"), "{last}");
    rping.assert_runs();
    a.assert_moves();
}

#[test]
fn test_an_address_comes_and_goes_under_a_connection_at_another() {
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
    // The kernel of the peers finds it.
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
