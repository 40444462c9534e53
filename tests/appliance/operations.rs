//! Every control operation, on an appliance that serves.

use serde_json::Value;

use crate::lab::{Appliance, PEER, listen};
use crate::watchdog::{StoppedThread, thread_of};

fn numbers(v: &Value, keys: &[&str]) {
    for key in keys {
        assert!(v[key].is_u64(), "{key}: {v}");
    }
}

#[test]
fn test_lists_name_worker_that_does_not_answer_and_show_the_rest() {
    let a = Appliance::start(&listen(7174, "rping"));
    let _rping = a.rping(7174);
    let conn = a.conns("rping", 1)[0]["conn"].clone();
    assert_eq!(a.ask(&["conns"])["silent"], serde_json::json!([]));
    let stopped = StoppedThread::new(thread_of(a.pid(), "heddle-w"));
    for (command, list) in [("conns", "conns"), ("qps", "qps"), ("stats", "counters")] {
        let answer = a.ask(&[command]);
        let silent = answer["silent"].as_array().unwrap();
        assert!(silent.contains(&0.into()), "{command}: {answer}");
        assert!(!answer[list].as_array().unwrap().is_empty(), "{command}: {answer}");
    }
    let text = a.command(&["conns"]);
    assert_eq!(text.status.code(), Some(0));
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("worker 0 has not answered"), "{text}");
    // The number in the list is good for the end of the connection.
    assert!(text.contains(&conn.to_string()), "{text}");
    let status = a.ask(&["status"]);
    assert!(status["workers"][0]["busy_ns"].is_null(), "{status}");
    a.ask(&["conn", "kill", &conn.to_string()]);
    drop(stopped);
    let until = std::time::Instant::now() + crate::lab::PATIENCE;
    while !a.ask(&["conns"])["conns"].as_array().unwrap().is_empty() {
        assert!(std::time::Instant::now() < until, "the connection has ended");
    }
    assert!(a.ask(&["status"])["workers"][0]["busy_ns"].as_u64().is_some_and(|ns| ns > 0));
}

#[test]
fn test_every_query_of_the_control_socket_is_answered() {
    let a = Appliance::start(&listen(7174, "rping"));
    let _rping = a.rping(7174);
    let conn = &a.conns("rping", 1)[0];
    numbers(conn, &["conn", "worker"]);
    assert!(conn["remote"].as_str().unwrap().starts_with(PEER), "{conn}");
    assert_eq!((&conn["agreed"]["revision"], &conn["agreed"]["crc"]), (&2.into(), &true.into()));
    numbers(&conn["tcp"], &["cwnd", "in_flight", "srtt_ns", "acked", "received", "emss"]);
    assert_eq!(conn["tcp"]["state"], "ESTABLISHED");
    a.assert_moves();

    let status = a.ask(&["status"]);
    numbers(&status, &["pid", "at_ns", "conns", "registrations"]);
    assert_eq!(status["pid"].as_i64(), Some(a.pid().into()));
    assert_eq!((&status["conns"], &status["workers"][0]["running"]), (&1.into(), &true.into()));
    assert_eq!(status["listeners"][0]["service"], "rping");

    let qp = &a.ask(&["qps"])["qps"][0];
    numbers(qp, &["qpn", "pd", "sq_depth", "rq_depth", "rx_bytes", "conn"]);
    assert_eq!((&qp["state"], &qp["conn"]), (&"rts".into(), &conn["conn"]));

    let mrs = a.ask(&["mrs"]);
    assert!(mrs["mrs"].as_array().is_some_and(|m| !m.is_empty()), "{mrs}");
    for mr in mrs["mrs"].as_array().unwrap() {
        numbers(mr, &["index", "len", "pd"]);
        assert!(mr.get("stag").is_none(), "an STag is a capability: {mr}");
        assert_eq!(mr["owner"], "services");
    }
    assert!(a.ask(&["mrs", "--stags"])["mrs"][0]["stag"].is_u64(), "root may see them");

    let port = &a.ask(&["ports"])["ports"][0];
    assert_eq!((&port["driver"], &port["up"]), (&"net_af_packet".into(), &true.into()));
    numbers(&port["counters"], &["rx_frames", "tx_frames"]);

    let stats = a.ask(&["stats"]);
    let of = |part: &str, name: &str| {
        let all = stats["counters"].as_array().unwrap();
        let found = all.iter().find(|c| c["part"] == part && c["name"] == name);
        found.unwrap_or_else(|| panic!("no {part} {name}")).clone()
    };
    let bytes = of("qp", "rx_bytes");
    assert!(bytes["value"].as_u64().unwrap() > 0 && !bytes["help"].as_str().unwrap().is_empty());
    // The worker of the port has counted all of them, the worker of the inner port none.
    assert_eq!(bytes["workers"], Value::from(vec![bytes["value"].clone(), 0.into()]));

    let top = a.ask(&["top", "--every", "300ms"]);
    assert!(top["conns"][0]["rx_bits"].as_f64().unwrap() > 0.0, "{top}");
    assert!(top["ports"][0]["tx_frames"].as_f64().unwrap() > 0.0, "{top}");

    // The tables for people show the same things.
    for (args, words) in [
        (&["status"][..], &["10.77.0.1:7174", "rping", "running"][..]),
        (&["conns"], &[PEER, "ESTABLISHED"][..1]),
        (&["qps"], &["rts"]),
        (&["mrs"], &["local-write"]),
        (&["ports"], &["net_af_packet", "10.77.0.1/16"]),
        (&["stats", "--help-texts"], &["rx_fpdus", "FPDUs received and found good."]),
        (&["top", "--once", "--every", "100ms"], &["retx/s", PEER]),
    ] {
        let out = a.command(args);
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(out.status.success() && words.iter().all(|w| text.contains(w)), "{args:?}: {text}");
    }
}

#[test]
fn test_connections_are_filtered_and_ended() {
    let a = Appliance::start(&listen(7174, "rping"));
    let mut rping = a.rping(7174);
    let id = a.conns("rping", 1)[0]["conn"].as_u64().unwrap().to_string();
    let count = |args: &[&str]| a.ask(args)["conns"].as_array().unwrap().len();
    assert_eq!(count(&["conns", "--remote", PEER]), 1);
    assert_eq!(count(&["conns", "--remote", "10.77.0.8"]), 0);
    assert_eq!(count(&["conns", "--port", "7174", "--worker", "0", "--state", "running"]), 1);
    assert_eq!(count(&["conns", "--port", "7175"]), 0);
    a.ask(&["conn", "kill", &id]);
    assert!(!rping.wait().success(), "its connection was reset");
    let (status, text) = a.refusal(&["conn", "kill", &id]);
    assert!(status == 1 && text.contains("there is no connection"), "{status}: {text}");
}

#[test]
fn test_services_come_and_go_and_their_connections_stay() {
    let a = Appliance::start("");
    a.ask(&["listen", "add", "10.77.0.1:7174=rping"]);
    let mut rping = a.rping(7174);
    a.assert_moves();
    for (args, what) in [
        (["listen", "add", "10.77.0.1:7174=sink"], "listens on 10.77.0.1:7174 already"),
        (["listen", "add", "10.77.0.2:7174=sink"], "address"),
        (["listen", "add", "10.77.0.1:7175=brew"], "unknown service 'brew'"),
        (["listen", "del", "10.77.0.1:7175"], "no service listens"),
    ] {
        let (status, text) = a.refusal(&args);
        assert!(status == 1 && text.contains(what), "{args:?}: {status}: {text}");
    }
    assert_eq!(a.refusal(&["listen", "add", "nonsense"]).0, 2);
    a.ask(&["listen", "del", "10.77.0.1:7174"]);
    let listeners = a.ask(&["status"])["listeners"].clone();
    assert_eq!(listeners[0]["state"], "ending", "{listeners}");
    rping.assert_runs();
    let conn = a.ask(&["conns"])["conns"][0]["conn"].as_u64().unwrap().to_string();
    a.ask(&["conn", "kill", &conn]);
    // The listener is gone after its last connection has ended.
    let until = std::time::Instant::now() + crate::lab::PATIENCE;
    while a.ask(&["status"])["listeners"] != Value::Array(vec![]) {
        assert!(std::time::Instant::now() < until);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
