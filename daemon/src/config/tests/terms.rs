//! Congestion control, ECN and pacing of listeners, of forwarders, and of the applications of a rule.

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
        "congestion = \"dctcp\"\necn = \"request\"\npacing = \"off\"\n",
        "congestion = \"newreno\"\necn = \"off\"\npacing = \"auto\"\n",
    );
    let terms = |congestion, ecn, pacing| TcpTerms {
        congestion: Some(congestion),
        ecn: Some(ecn),
        pacing: Some(pacing),
    };
    assert_eq!(c.listen[0].tcp, terms(Congestion::Dctcp, Ecn::Request, Pacing::Off));
    assert_eq!(c.clients[0].policy.tcp, terms(Congestion::NewReno, Ecn::Off, Pacing::Auto));
    assert_eq!(parse(&c.to_text().unwrap()), c);
    for (l, c, key) in [
        ("congestion = \"vegas\"\n", "", "listen[0].congestion"),
        ("ecn = \"on\"\n", "", "listen[0].ecn"),
        ("pacing = \"on\"\n", "", "listen[0].pacing"),
        ("", "congestion = \"vegas\"\n", "client[0].congestion"),
        ("", "ecn = \"on\"\n", "client[0].ecn"),
        ("", "pacing = \"on\"\n", "client[0].pacing"),
    ] {
        let problems = of_keys(&format!("{LEAST}{listener}{l}{rule}{c}"));
        assert!(
            matches!(&problems[..], [(k, t)] if k == key && t.contains("is none of")),
            "{problems:?}"
        );
    }
}

/// The connections over iWARP have the settings: those to the target, or those that come.
#[test]
fn test_forwarders_have_settings_of_tcp() {
    let spoken = "[infiniband]\ncm = true\n";
    let of = |over: &str, terms: &str| {
        parse(&format!(
            "{LEAST}{spoken}[[listen]]\naddress = \"0.0.0.0:8\"\n{terms}\
             forward = {{ to = \"10.0.0.9:1\", over = \"{over}\" }}\n"
        ))
    };
    assert_eq!(of("iwarp", "").forward[0].tcp, TcpTerms::default());
    for over in ["iwarp", "infiniband"] {
        let c = of(over, "congestion = \"dctcp\"\necn = \"request\"\npacing = \"off\"\n");
        let tcp = TcpTerms {
            congestion: Some(Congestion::Dctcp),
            ecn: Some(Ecn::Request),
            pacing: Some(Pacing::Off),
        };
        let rule = c.forward[0].rule(&c);
        assert_eq!((c.forward[0].tcp, rule.tcp, rule.params.tcp), (tcp, tcp, tcp));
        assert_eq!(parse(&c.to_text().unwrap()), c);
    }
}
