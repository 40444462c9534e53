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
