//! Congestion control and ECN of listeners, and of the applications of a rule.

use super::*;

#[test]
fn test_listeners_and_client_rules_have_congestion_control_of_their_own() {
    let listener = "[[listen]]\naddress = \"0.0.0.0:9\"\nservice = \"sink\"\n";
    let rule = "[[client]]\nwho = \"any\"\n";
    let of = |l: &str, c: &str| parse(&format!("{LEAST}{listener}{l}{rule}{c}"));
    let c = of("", "");
    let usual = TcpTerms::default();
    assert_eq!((c.listen[0].tcp, c.clients[0].policy.tcp), (usual, usual));
    let c = of(
        "congestion = \"dctcp\"\necn = \"request\"\n",
        "congestion = \"newreno\"\necn = \"off\"\n",
    );
    let terms = |congestion, ecn| TcpTerms { congestion: Some(congestion), ecn: Some(ecn) };
    assert_eq!(c.listen[0].tcp, terms(Congestion::Dctcp, Ecn::Request));
    assert_eq!(c.clients[0].policy.tcp, terms(Congestion::NewReno, Ecn::Off));
    assert_eq!(parse(&c.to_text().unwrap()), c);
    for (l, c, key) in [
        ("congestion = \"vegas\"\n", "", "listen[0].congestion"),
        ("ecn = \"on\"\n", "", "listen[0].ecn"),
        ("", "congestion = \"vegas\"\n", "client[0].congestion"),
        ("", "ecn = \"on\"\n", "client[0].ecn"),
    ] {
        let problems = of_keys(&format!("{LEAST}{listener}{l}{rule}{c}"));
        assert!(
            matches!(&problems[..], [(k, t)] if k == key && t.contains("is none of")),
            "{problems:?}"
        );
    }
    let forwards = "[[listen]]\naddress = \"0.0.0.0:8\"\ncongestion = \"dctcp\"\n\
                    forward = { to = \"10.0.0.9:1\", over = \"iwarp\" }\n";
    let problems = of_keys(&format!("{LEAST}{forwards}"));
    assert!(problems.iter().any(|(k, _)| k == "listen[0].congestion"), "{problems:?}");
}
