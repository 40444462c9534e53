mod bond;
mod terms;

use super::*;

use heddle_dataplane::{IovaMode, Naps};
use heddle_hub::ShareTerms;
use heddle_tcp::Priority;
use heddle_types::TcpTerms;
use heddle_types::mpa::{CrcPolicy, Revision, Rtr, RtrSet};

/// The shortest valid file.
const LEAST: &str = "[[port]]\nvdev = \"net_null0\"\naddresses = [\"10.0.0.1/24\"]\n";

fn accounts() -> Accounts {
    Accounts::parse("ann:x:1000:1000::\n", "rdma:x:50:ann\n")
}

fn parse(text: &str) -> Config {
    Config::parse(text, &accounts()).unwrap_or_else(|p| panic!("{p:?}"))
}

/// Returns line, column and text of each problem.
fn wrong(text: &str) -> Vec<(usize, usize, String)> {
    let problems = Config::parse(text, &accounts()).expect_err(text);
    problems.into_iter().map(|p| (p.line, p.column, p.text)).collect()
}

#[test]
fn test_omitted_keys_have_default_values() {
    let c = parse(LEAST);
    let [port] = &c.ports[..] else { panic!("{c:?}") };
    assert_eq!((port.name.as_str(), port.mtu, port.workers, port.queues), ("port0", 1500, 1, None));
    assert_eq!(c.workers, Workers { lcores: vec![], idle: IdlePolicy::Spin });
    assert_eq!(c.log, Log { level: LevelFilter::WARN, format: LogFormat::Text });
    assert_eq!(c.control, Some(Control::at(heddle_socket::DEFAULT_PATH)));
    assert_eq!(c.limits, Limits::default());
    assert_eq!(c.memory, Memory { registered: 256, pages: PageSize::Auto, queues: 64 });
    assert_eq!(c.keepalive, keepalive(Duration::from_secs(60)));
    assert_eq!(c.patience, Patience::default());
    assert_eq!(c.ib_keepalive, Some(Duration::from_secs(60)));
    assert_eq!((c.shutdown, c.listen.len()), (Duration::from_secs(5), 0));
    assert_eq!(c.mpa, MpaOptions::new());
}

#[test]
fn test_every_key_sets_its_configuration_field() {
    let text = r#"
[dpdk]
memory = 300
hugepages = "never"
iova = "pa"
[log]
level = "debug"
format = "json"
[control]
socket = "/tmp/x"
mode = "0600"
group = "rdma"
read = ["any"]
change = ["group:rdma", "user:7"]
clients = 9
exports = ["/srv"]
[metrics]
listen = "127.0.0.1:9184"
[workers]
lcores = [3, 0]
idle = "backoff"
nap-after = "1ms"
nap-longest = "2ms"
[memory]
registered = 12
pages = "2M"
queues = 13
[limits]
connections = 7
registrations = 8
frames = 2048
peer-share = 2
peer-connections = 5
fpdu-memory = 16384
rnr-wait = "250ms"
first-message = "0s"
weight = 7
[mpa]
crc = false
revision = 2
rtr = ["send", "read"]
markers = true
fpdu-stall = "30s"
[tcp]
keepalive = "0s"
user-timeout = "1s"
zero-window = "90s"
close-stall = "2500ms"
close-limit = "86400s"
congestion = "newreno"
ecn = "request"
pacing = "off"
path-mtu-probing = "on"
user-timeout-option = "advertise"
user-timeout-limit = "900s"
receive-window = 4096
syn-cookies = "always"
receive-window-budget = 0
[shutdown]
deadline = "250ms"
[[port]]
name = "left"
pci = "0000:3b:00.0"
mtu = 9000
addresses = ["10.0.0.1/24", "10.1.0.1/16"]
workers = 2
queues = 1
gateway = "10.0.0.254"
router-advertisements = "routes"
routes = [{ to = "10.9.0.0/16", via = "10.1.9.9" }]
[[port.vlan]]
id = 10
addresses = ["10.3.0.1/24"]
gateway = "10.3.0.254"
routes = [{ to = "10.8.0.0/16", via = "10.3.0.9" }]
router-advertisements = "addresses"
priority = "dscp"
[[port.vlan]]
id = 20
addresses = ["10.4.0.1/24"]
priority = 5
[[port]]
vdev = "net_ring0"
addresses = ["10.2.0.1/24"]
[[listen]]
address = "10.2.0.1:7174"
service = "ib_write_bw,size=8"
[[listen]]
address = "0.0.0.0:1"
service = "sink"
[infiniband]
keepalive = "2s"
cm = true
[[listen]]
address = "10.2.0.1:7175"
service = "cmtime"
infiniband = true
[[listen]]
address = "10.2.0.1:7176"
forward = { to = "10.2.0.9:7174", over = "iwarp" }
[[listen]]
address = "0.0.0.0:7177"
[listen.forward]
to = "10.2.0.9:7175"
over = "infiniband"
connections = 1
timeout = "250ms"
"#;
    let c = parse(text);
    // Shown as a file, the configuration reads the same.
    let shown = c.to_text().unwrap();
    let again = parse(&shown);
    assert_eq!(again, c, "{shown}");
    assert_eq!(again.to_value(), c.to_value());
    assert_eq!(
        c.dpdk,
        Dpdk { memory: Some(300), hugepages: Hugepages::Never, iova: Some(IovaMode::Pa) }
    );
    assert_eq!(c.log, Log { level: LevelFilter::DEBUG, format: LogFormat::Json });
    let rdma = Principal::Group { gid: 50, members: [1000].into() };
    let control = Control {
        path: "/tmp/x".into(),
        mode: 0o600,
        group: Some(50),
        read: vec![Principal::Any],
        change: vec![rdma, Principal::User(7)],
        exports: vec!["/srv".into()],
        clients: 9,
    };
    assert_eq!(c.control, Some(control));
    assert_eq!(c.workers.lcores, [3, 0]);
    let naps = Naps {
        after: Duration::from_millis(1),
        longest: Duration::from_millis(2),
        ..Naps::default()
    };
    assert_eq!(c.workers.idle, IdlePolicy::Backoff(naps));
    assert_eq!(c.memory, Memory { registered: 12, pages: PageSize::Huge2M, queues: 13 });
    let limits = Limits {
        connections: 7,
        registrations: 8,
        frames: 2048,
        peer_share: 2,
        peer_connections: Some(5),
        fpdu_memory: 16_384,
        rnr_wait: Duration::from_millis(250),
        first_message: None,
    };
    assert_eq!((c.limits, c.weight), (limits, 7));
    let rtr = RtrSet::of(Rtr::Send).with(RtrSet::of(Rtr::Read));
    let mpa = MpaOptions::new().crc(CrcPolicy::Off).revision(Revision::V2);
    assert_eq!(c.mpa, mpa.peer_to_peer(rtr).markers(true));
    let tcp = heddle_tcp::Patience {
        user_timeout: Duration::from_secs(1),
        zero_window: Duration::from_secs(90),
        close_stall: Duration::from_millis(2500),
    };
    let (close_limit, fpdu_stall) = (Duration::from_secs(86_400), Duration::from_secs(30));
    assert_eq!(c.patience, Patience { tcp, close_limit, fpdu_stall });
    let sharing = Sharing {
        congestion: Congestion::NewReno,
        ecn: Ecn::Request,
        pacing: Pacing::Off,
        path_mtu: PathMtu::On,
        user_timeout_option: UserTimeoutOption::Advertise,
        user_timeout_limit: Duration::from_secs(900),
        recv_window: 4 << 20,
        recv_window_max: 0,
        window_budget: 0,
    };
    assert_eq!((c.sharing, c.syn_cookies), (sharing, SynCookies::Always));
    assert_eq!((c.keepalive, c.shutdown), (None, Duration::from_millis(250)));
    assert_eq!(c.ib_keepalive, Some(Duration::from_secs(2)));
    let [left, other] = &c.ports[..] else { panic!("{:?}", c.ports) };
    assert_eq!((left.name.as_str(), left.mtu), ("left", 9000));
    assert_eq!(left.router_adverts, RouterAdverts::Routes);
    assert_eq!((left.workers, left.queues, c.worker_count()), (2, Some(1), 3));
    assert!(matches!(&left.source, PortSource::Device(d) if d == "0000:3b:00.0"));
    let routes: Vec<_> = left.routes.iter().map(ToString::to_string).collect();
    assert_eq!(left.addresses.len(), 2);
    assert_eq!(routes, ["0.0.0.0/0 via 10.0.0.254", "10.9.0.0/16 via 10.1.9.9"]);
    assert_eq!(other.name, "port1");
    let [ten, twenty] = &left.vlans[..] else { panic!("{:?}", left.vlans) };
    assert_eq!((ten.vid.get(), ten.priority), (10, Priority::Dscp));
    assert_eq!(ten.router_adverts, RouterAdverts::Addresses);
    let routes: Vec<_> = ten.net.routes().iter().map(ToString::to_string).collect();
    assert_eq!(routes, ["0.0.0.0/0 via 10.3.0.254", "10.8.0.0/16 via 10.3.0.9"]);
    assert_eq!((twenty.vid.get(), twenty.priority), (20, Priority::Fixed(5)));
    let addresses: Vec<_> = left.all_addresses().map(|c| c.addr().to_string()).collect();
    assert_eq!(addresses, ["10.0.0.1", "10.1.0.1", "10.3.0.1", "10.4.0.1"]);
    let listen: Vec<_> = c.listen.iter().map(|s| format!("{}={}", s.addr, s.kind)).collect();
    let services = ["10.2.0.1:7174=ib_write_bw", "0.0.0.0:1=sink", "10.2.0.1:7175=cmtime"];
    assert_eq!(listen, services);
    let also: Vec<_> = c.listen.iter().map(|s| s.infiniband).collect();
    assert_eq!((c.infiniband, also), (true, vec![false, false, true]));
    let forward: Vec<_> = c.forward.iter().map(|f| format!("{} {f}", f.addr)).collect();
    assert_eq!(
        forward,
        [
            "10.2.0.1:7176 forward to 10.2.0.9:7174 over iwarp",
            "0.0.0.0:7177 forward to 10.2.0.9:7175 over infiniband"
        ]
    );
    let numbers: Vec<_> = c.forward.iter().map(|f| (f.connections, f.timeout)).collect();
    let usual = (64, Duration::from_secs(5));
    assert_eq!(numbers, [usual, (1, Duration::from_millis(250))]);
    assert_eq!(parse(&format!("[control]\nsocket = \"\"\n{LEAST}")).control, None);
}

#[test]
fn test_client_gets_half_of_shared_limits_unless_file_says_otherwise() {
    let limits = "[limits]\nconnections = 10\nregistrations = 7\n";
    let rule = parse(&format!("{LEAST}{limits}[[client]]\nwho = \"any\"\n"));
    let policy = &rule.clients[0].policy;
    assert_eq!((policy.connections, policy.limits.max_mrs, policy.limits.max_mws), (5, 4, 4));
    assert_eq!(rule.usual_policy().limits.max_mrs, 4);
}

#[test]
fn test_client_rule_has_weight_and_rates_of_its_share() {
    let rule = |keys: &str| parse(&format!("{LEAST}[[client]]\nwho = \"any\"\n{keys}"));
    let share = rule("").clients[0].policy.share;
    assert_eq!(share, ShareTerms { weight: 1, rate: None, connection_rate: None });
    let c = rule("weight = 1000\nrate = \"10Gbit/s\"\nconnection-rate = \"100MB/s\"\n");
    let terms =
        ShareTerms { weight: 1000, rate: Some(1_250_000_000), connection_rate: Some(100_000_000) };
    assert_eq!(c.clients[0].policy.share, terms);
    assert_eq!(parse(&c.to_text().unwrap()), c);
    for (keys, key, text) in [
        ("weight = 0", "client[0].weight", "0 is not between 1 and 1000"),
        ("rate = \"50k\"", "client[0].rate", "is not a rate such as 100MB/s or 10Gbit/s, or none"),
        ("connection-rate = \"1kB/s\"", "client[0].connection-rate", "less than 1MB/s"),
    ] {
        let problems = of_keys(&format!("{LEAST}[[client]]\nwho = \"any\"\n{keys}\n"));
        assert!(matches!(&problems[..], [(k, t)] if k == key && t.contains(text)), "{problems:?}");
    }
}

#[test]
fn test_client_policy_maps_enough_address_space_for_its_regions() {
    let rule = parse(&format!("{LEAST}[[client]]\nwho = \"any\"\nregions = 1000"));
    let window = 16 << 30;
    assert_eq!(rule.clients[0].policy.mapped, 1000 * window);
    let (grace, log) =
        (Duration::from_secs(1), Log { level: LevelFilter::OFF, format: LogFormat::Text });
    let private = Config::private("/tmp/x", Private { grace }, log).usual_policy();
    // Each program has three windows.
    assert!(private.mapped >= 3 * u64::from(private.sessions) * window, "{private:?}");
}

#[test]
fn test_peer_limits_must_be_between_a_second_and_a_day() {
    let tcp = ["user-timeout", "zero-window", "close-stall", "close-limit"].map(|k| ("tcp", k));
    for (table, key) in tcp.into_iter().chain([("mpa", "fpdu-stall")]) {
        for good in ["1s", "86400s"] {
            parse(&format!("[{table}]\n{key} = \"{good}\"\n{LEAST}"));
        }
        for bad in ["0s", "999ms", "86401s"] {
            let text = format!("[{table}]\n{key} = \"{bad}\"\n{LEAST}");
            let what = "the time is not between 1s and 86400s".to_owned();
            assert_eq!(wrong(&text), [(2, key.len() + 4, what)], "{text}");
        }
    }
    let limit = |own: &str, limit: &str| {
        format!("[tcp]\nuser-timeout = \"{own}\"\nuser-timeout-limit = \"{limit}\"\n{LEAST}")
    };
    for (own, good) in [("1s", "100s"), ("900s", "900s"), ("1s", "86400s")] {
        parse(&limit(own, good));
    }
    for (own, bad) in [("1s", "99999ms"), ("901s", "900s")] {
        let what = "the time is less than 100s, or less than user-timeout".to_owned();
        assert_eq!(wrong(&limit(own, bad)), [(3, 22, what)], "{own} {bad}");
    }
    assert_eq!(wrong(&limit("1s", "86401s")).len(), 1);
    let text = format!("[limits]\nrnr-wait = \"60001ms\"\n{LEAST}");
    assert_eq!(wrong(&text), [(2, 12, "the time is longer than 60s".to_owned())]);
    let limit = |n: &str| format!("[limits]\npeer-connections = {n}\n{LEAST}");
    assert_eq!(parse(&limit("0")).limits.peer_connections, None);
    assert_eq!(parse(&limit("1")).limits.peer_connections, Some(1));
    assert_eq!(wrong(&limit("-1")).len(), 1);
}

/// The check reports all problems at once, each with its place.
#[test]
fn test_parser_reports_every_error_with_its_line_and_column() {
    let text = r#"[log]
level = "loud"
[control]
mode = "rwx"
read = ["ann"]
[limits]
  connections = 0
[mpa]
rtr = ["sends"]
revision = 3
[tcp]
keepalive = "60"
[[port]]
vdev = "eth0"
mtu = 99
addresses = ["10.0.0.1/24", "10.0.0.1/8", "nowhere"]
gateway = "10.9.9.9"
[[listen]]
address = "10.0.0.2:1"
service = "ftp"
[[listen]]
address = "10.0.0.1:1"
"#;
    let wrong = wrong(text);
    let at: Vec<_> = wrong.iter().map(|(line, column, _)| (*line, *column)).collect();
    let want = [
        (2, 9),
        (4, 8),
        (5, 9),
        (7, 17),
        (9, 8),
        (10, 12),
        (12, 13),
        (14, 8),
        (15, 7),
        (16, 29),
        (16, 43),
        (17, 11),
        (20, 11),
        (21, 1),
    ];
    assert_eq!(at, want, "{wrong:#?}");
    for (n, expected) in [
        (0, "off, error, warn, info, debug, trace"),
        (1, "octal"),
        (2, "user:NAME"),
        (3, "between 1 and"),
        (4, "send, write, read"),
        (6, "with its unit"),
        (8, "between 576 and 9000"),
        (9, "given twice"),
        (10, "ADDRESS/PREFIX"),
        (12, "known: rping"),
        (13, "address and service"),
    ] {
        assert!(wrong[n].2.contains(expected), "{:?}: no {expected:?}", wrong[n]);
    }
}

#[test]
fn test_parser_refuses_invalid_forward_and_infiniband_listeners() {
    let ib = "[infiniband]\ncm = true\n";
    let at = |port: u16, what: &str| format!("[[listen]]\naddress = \"10.0.0.1:{port}\"\n{what}\n");
    let forward =
        |to: &str, over: &str| format!("forward = {{ to = \"{to}\", over = \"{over}\" }}");
    let good = forward("10.0.0.9:1", "iwarp");
    let cmtime = "service = \"cmtime\"\ninfiniband = true";
    // A single problem in the last of the lines: the text, the place, and the message.
    for (text, line, column, expected) in [
        (at(1, &good), 6, 11, "needs cm = true in [infiniband]"),
        (at(1, cmtime), 7, 14, "needs cm = true in [infiniband]"),
        (format!("{ib}{}", at(1, "service = \"rping\"\ninfiniband = true")), 9, 14, "only cmtime"),
        (format!("{ib}{}", at(1, &format!("{good}\ninfiniband = true"))), 9, 14, "said by 'over'"),
        (format!("{ib}{}", at(1, &format!("service = \"sink\"\n{good}"))), 9, 11, "not both"),
        (format!("{ib}{}", at(1, "")), 6, 1, "or forward in its place"),
        (format!("{ib}{}", at(1, "forward = { to = \"10.0.0.9:1\" }")), 8, 11, "to and over"),
        (format!("{ib}{}", at(1, &forward("10.0.0.9", "iwarp"))), 8, 18, "not an address and port"),
        (format!("{ib}{}", at(1, &forward("[::]:1", "iwarp"))), 8, 18, "of none or many"),
        (format!("{ib}{}", at(1, &forward("0.0.0.0:1", "iwarp"))), 8, 18, "of none or many"),
        (format!("{ib}{}", at(1, &forward("10.0.0.9:1", "roce"))), 8, 39, "iwarp, infiniband"),
        (
            format!("{ib}{}", at(1, &good.replace(" }", ", connections = 0 }"))),
            8,
            62,
            "between 1 and",
        ),
        (format!("{ib}{}", at(1, &good.replace(" }", ", timeout = \"1h\" }"))), 8, 58, ""),
        (format!("{ib}{}", at(1, &good.replace(" }", ", timeout = \"61s\" }"))), 8, 58, "60s"),
        (format!("{ib}{}", at(1, &good.replace(" }", ", limit = 1 }"))), 8, 48, "unknown key"),
        (format!("{ib}{}{}", at(1, "service = \"sink\""), at(1, &good)), 10, 11, "given twice"),
        (format!("{ib}{}", at(1, &forward("10.0.0.1:2", "iwarp"))), 8, 18, "address of a port"),
        (
            format!("{ib}{}", at(1, &forward("10.0.0.1:1", "iwarp"))),
            8,
            18,
            "a loop: what comes to 10.0.0.1:1 to 10.0.0.1:1",
        ),
    ] {
        let problems = wrong(&format!("{LEAST}{text}"));
        let [(l, c, what)] = &problems[..] else { panic!("{text}: {problems:?}") };
        assert_eq!((*l, *c), (line, column), "{text}: {what}");
        assert!(what.contains(expected), "{text}: {what}");
    }
}

#[test]
fn test_forwarding_loop_over_several_listeners_is_reported_with_its_path() {
    let rule = |addr: &str, to: &str| {
        let (addr, to) = (addr.parse().unwrap(), to.parse().unwrap());
        let (timeout, tcp) = (Duration::from_secs(1), TcpTerms::default());
        Forward { addr, to, over: heddle_verbs::Transport::Iwarp, connections: 1, timeout, tcp }
    };
    let ports = parse(LEAST).ports;
    let others = [rule("10.0.0.1:1", "10.0.0.1:2"), rule("0.0.0.0:2", "10.0.0.1:3")];
    let new = rule("10.0.0.1:3", "10.0.0.1:1");
    let e = forward::check(&new, &ports, &others).unwrap_err();
    let way = "10.0.0.1:3 to 10.0.0.1:1 to 10.0.0.1:2 to 10.0.0.1:3";
    assert_eq!(e, format!("a loop: what comes to {way}"));
    // A rule that only leads to the loop is refused for another reason.
    let e = forward::check(&rule("10.0.0.1:4", "10.0.0.1:1"), &ports, &others).unwrap_err();
    assert!(e.contains("address of a port"), "{e}");
    assert_eq!(forward::check(&rule("10.0.0.1:4", "10.0.0.9:1"), &ports, &others), Ok(()));
}

/// The check does not look at directories, because a file is only text here; the start does.
#[test]
fn test_parser_accepts_export_listeners_with_their_options() {
    let listen = |port: u16, service: &str| {
        format!("[[listen]]\naddress = \"10.0.0.1:{port}\"\nservice = \"{service}\"\n")
    };
    let good = listen(1, "nfs:/srv/a,ro") + &listen(2, "nfs:/srv/b,tcp=0.0.0.0:20048");
    let c = parse(&format!("{LEAST}{good}"));
    let services: Vec<_> = c.listen.iter().map(|s| s.kind.to_string()).collect();
    assert_eq!(services, ["nfs:/srv/a,ro", "nfs:/srv/b,tcp=0.0.0.0:20048"]);
    let first = |service: &str| wrong(&format!("{LEAST}{}", listen(1, service))).remove(0).2;
    assert!(first("nfs").contains("needs the absolute path"), "{}", first("nfs"));
    assert!(first("nfs:/srv,rw").contains("'rw': nfs takes ro, async"), "{}", first("nfs:/srv,rw"));
    let twice = listen(1, "nfs:/a,tcp=0.0.0.0:1") + &listen(2, "nfs:/b,tcp=0.0.0.0:1");
    let problems = wrong(&format!("{LEAST}{twice}"));
    let [(_, 11, text)] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!(text, "tcp=0.0.0.0:1 is given twice");
    let twice = listen(1, "nfs:/a,rpcbind") + &listen(2, "nfs:/b") + &listen(3, "nfs:/c,rpcbind");
    let problems = wrong(&format!("{LEAST}{twice}"));
    let [(_, 11, text)] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!(text, "rpcbind is given twice: it knows one place of NFS");
}

#[test]
fn test_exports_in_tables_equal_exports_in_service_text() {
    let listen = |service: &str, exports: &str| {
        format!("[[listen]]\naddress = \"10.0.0.1:1\"\nservice = \"{service}\"\n{exports}")
    };
    let kind = |text: &str| parse(&format!("{LEAST}{text}")).listen[0].kind.to_string();
    let tables = "[[listen.export]]\npath = \"/srv/a\"\nro = true\nclient = [\"10.0.0.0/8\", \"::1\"]\n\
                  [[listen.export]]\npath = \"/srv/b\"\nasync = true\nsquash = \"root\"\n\
                  anonuid = 1000\nanongid = 100\n";
    let one = "nfs:/srv/a,ro,tcp=0.0.0.0:2,workers=4,client=10.0.0.0/8,client=::1,\
               /srv/b,async,root_squash,anonuid=1000,anongid=100";
    assert_eq!(kind(&listen("nfs,tcp=0.0.0.0:2,workers=4", tables)), one);
    assert_eq!(kind(&listen(one, "")), one);
    let table = |keys: &str| format!("[[listen.export]]\n{keys}\n");
    for (service, exports, line, said) in [
        ("nfs:/srv/a", table("path = \"/srv/b\""), 6, "with [[listen.export]] the service is nfs"),
        ("nfs,ro", table("path = \"/srv/b\""), 6, "'ro': with [[listen.export]]"),
        ("sink", table("path = \"/srv/b\""), 6, "'sink': with [[listen.export]]"),
        ("nfs", table("ro = true"), 7, "an export needs path"),
        ("nfs", table("path = \"srv\""), 8, "absolute path"),
        ("nfs", table("path = \"/a,/b\""), 8, "without a comma"),
        ("nfs", table("path = \"/a\"\nsquash = \"yes\""), 9, "yes"),
        ("nfs", table("path = \"/a\"\nclient = [\"host\"]"), 9, "not an address"),
        ("nfs", table("path = \"/a\"\nanonuid = 4294967295"), 9, "not between 0 and"),
        ("nfs", table("path = \"/a\"") + &table("path = \"/a/\""), 6, "given twice"),
    ] {
        let problems = wrong(&format!("{LEAST}{}", listen(service, &exports)));
        let [(at, _, text)] = &problems[..] else { panic!("{exports}: {problems:?}") };
        assert!(*at == line && text.contains(said), "{service} {exports}: {problems:?}");
    }
    let without =
        format!("{LEAST}[[listen]]\naddress = \"10.0.0.1:1\"\n{}", table("path = \"/a\""));
    assert!(wrong(&without)[0].2.contains("a listener needs address and service"));
}

#[test]
fn test_listener_address_must_belong_to_a_port_and_be_given_once() {
    let listen = |addr: &str| format!("[[listen]]\naddress = \"{addr}\"\nservice = \"sink\"\n");
    let problems = wrong(&format!("{LEAST}{}", listen("10.0.0.2:1")));
    assert_eq!(
        problems,
        [(5, 11, "no port has the address 10.0.0.2 (they have 10.0.0.1)".to_owned())]
    );
    let problems = wrong(&format!("{LEAST}{}{}", listen("10.0.0.1:1"), listen("10.0.0.1:1")));
    assert_eq!(problems, [(8, 11, "10.0.0.1:1 is given twice".to_owned())]);
}

#[test]
fn test_parser_refuses_vlans_that_a_port_cannot_have() {
    let vlan = |keys: &str| format!("{LEAST}[[port.vlan]]\n{keys}\n");
    let a = "addresses = [\"10.2.0.1/24\"]";
    for (text, line, expected) in [
        (vlan(a), 4, "a VLAN needs its id"),
        (vlan(&format!("id = 0\n{a}")), 5, "between 1 and 4094"),
        (vlan(&format!("id = 4095\n{a}")), 5, "between 1 and 4094"),
        (vlan("id = 10"), 4, "a VLAN needs addresses"),
        (vlan("id = 10\naddresses = [\"10.0.0.1/24\"]"), 4, "10.0.0.1 is given twice"),
        (vlan(&format!("id = 10\n{a}\npriority = 8")), 7, "a priority is 0 to 7"),
        (vlan(&format!("id = 10\n{a}\npriority = \"high\"")), 7, "a priority is 0 to 7"),
        (vlan(&format!("id = 10\n{a}\ngateway = \"10.0.0.2\"")), 7, "on no link of ours"),
        (
            vlan(&format!("id = 10\n{a}\n[[port.vlan]]\nid = 10\naddresses = [\"10.3.0.1/24\"]")),
            7,
            "VLAN 10 is given twice",
        ),
        (
            vlan(&format!("id = 10\n{a}\n[[port]]\nvdev = \"net_null1\"\n{a}")),
            9,
            "the address of another port",
        ),
        (
            format!(
                "{LEAST}[[port]]\nvdev = \"net_null1\"\naddresses = [\"10.9.0.1/24\"]\n\
                  [[port.vlan]]\nid = 10\naddresses = [\"10.0.0.1/24\"]"
            ),
            7,
            "the address of another port",
        ),
    ] {
        let problems = wrong(&text);
        let [(at, _, what)] = &problems[..] else { panic!("{text}: {problems:?}") };
        assert!(*at == line && what.contains(expected), "{text}: {problems:?}");
    }
    // A port may have addresses in VLANs alone, and services there.
    let only = format!(
        "[[port]]\nvdev = \"net_null0\"\n[[port.vlan]]\nid = 10\n{a}\n\
                        [[listen]]\naddress = \"10.2.0.1:1\"\nservice = \"sink\"\n"
    );
    assert_eq!(parse(&only).listen.len(), 1);
}

#[test]
fn test_parser_refuses_invalid_ports_and_ports_that_share_a_name_or_address() {
    let port = |more: &str| format!("[[port]]\nvdev = \"net_null0\"\n{more}\n");
    let (a, b) = ("addresses = [\"10.0.0.1/24\"]", "addresses = [\"10.1.0.1/24\"]");
    let two = |a: &str, b: &str| port(a) + &port(b).replace("net_null0", "net_null1");
    for (text, line, column, expected) in [
        (two(a, a), 6, 14, "the address of another port"),
        (two(a, &format!("name = \"port0\"\n{b}")), 6, 8, "another port is called port0"),
        (port(&format!("{a}\nworkers = 2\nqueues = 3")), 5, 10, "between 1 and 2"),
        (port(&format!("{a}\nworkers = 65")), 4, 11, "between 1 and 64"),
        (port(&format!("{a}\nroutes = [{{ to = \"10.9.0.0/16\" }}]")), 4, 11, "to and via"),
        (
            port(&format!("{a}\nroutes = [{{ to = \"10.9.0.1/16\", via = \"10.0.0.2\" }}]")),
            4,
            11,
            "is no network",
        ),
        (
            format!("{}[workers]\nlcores = [0, 1]\n", port(a)),
            5,
            14,
            "there is 1 worker, so none is left for processor 1",
        ),
        (format!("{}[workers]\nlcores = [1, 1]\n", two(a, b)), 8, 14, "given twice"),
        (format!("{}[workers]\nnap-longest = \"1s\"\n", port(a)), 5, 15, "10ms"),
    ] {
        let problems = wrong(&text);
        let [(l, c, what)] = &problems[..] else { panic!("{text}: {problems:?}") };
        assert_eq!((*l, *c), (line, column), "{text}: {what}");
        assert!(what.contains(expected), "{text}: {what}");
    }
}

#[test]
fn test_unknown_keys_and_wrong_types_are_refused_where_they_stand() {
    for (text, line, column, expected) in [
        ("[port]\n", 1, 1, "invalid type: table, expected an array"),
        ("[logs]\nlevel = \"warn\"\n", 1, 2, "unknown key `logs`"),
        ("[log]\n  levels = \"warn\"\n", 2, 3, "expected `level` or `format`"),
        ("[[port]]\nvlans = 5\n", 2, 1, "unknown key `vlans`"),
        ("[mpa]\ncrc = \"on\"\n", 2, 7, "expected a boolean"),
        ("[limits]\nframes = \"many\"\n", 2, 10, "expected an integer"),
        ("[log]\nlevel = \n", 2, 9, ""),
        ("[log]\n[log]\n", 2, 2, "duplicate"),
    ] {
        let mut problems = wrong(text);
        // The texts have no more of a port than they need.
        let needs = "a port needs vdev, pci or bond";
        let of_port = ["there is no [[port]]", needs, "a port needs addresses"];
        problems.retain(|(.., what)| !of_port.contains(&what.as_str()));
        let [(l, c, what)] = &problems[..] else { panic!("{text}: {problems:?}") };
        assert_eq!((*l, *c), (line, column), "{text}: {what}");
        assert!(what.contains(expected) && !what.contains('\n'), "{text}: {what}");
    }
    // This text is not in the format of a file at all.
    assert_eq!(wrong("\u{0}")[0].0, 1);
    assert!(wrong("").iter().any(|(.., text)| text.contains("no [[port]]")));
}

/// Returns the key and the text of each problem.
fn of_keys(text: &str) -> Vec<(String, String)> {
    let problems = Config::parse(text, &accounts()).expect_err(text);
    problems.into_iter().map(|p| (p.key, p.text)).collect()
}

#[test]
fn test_parser_reports_unknown_keys_wrong_types_and_wrong_values_in_one_run() {
    let text = "[log]\nlevle = \"warn\"\nformat = \"xml\"\n[limits]\nframes = \"many\"\n\
                connections = 0\n[tcp]\nkeepalive = 60\nzero-window = -1\n[prot]\n[[port]]\n\
                vdev = \"net_null0\"\naddresses = \"10.0.0.1/24\"\nmtu = true\n[[port]]\n\
                pci = 7\naddresses = [\"10.1.0.1/24\", 5]\n[[listen]]\naddress = \"10.9.9.9:1\"\n\
                service = \"rpong\"\n";
    let wrong = of_keys(text);
    let want = [
        ("log.levle", "did you mean `level`?"),
        ("log.format", "'xml' is none of text, json"),
        ("limits.frames", "expected an integer"),
        ("limits.connections", "between 1 and"),
        ("tcp.keepalive", "write \"60s\""),
        ("tcp.zero-window", "without a unit"),
        ("prot", "did you mean `port`?"),
        ("port[0].addresses", "expected an array"),
        ("port[0].mtu", "expected an integer"),
        ("port[1].pci", "expected a string"),
        ("port[1].addresses[1]", "expected a string"),
        ("listen[0].service", "known: rping"),
    ];
    // No key counts as missing that is there and of a wrong type, and no address as foreign.
    let keys: Vec<_> = wrong.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, want.map(|(key, _)| key), "{wrong:#?}");
    for ((_, text), (key, expected)) in wrong.iter().zip(want) {
        assert!(text.contains(expected), "{key}: {text}: no {expected:?}");
    }
}

#[test]
fn test_parser_reports_every_error_in_the_form_of_the_text() {
    let problems = wrong("[limits]\nframes = \nconnections = \n");
    let lines: Vec<_> = problems.iter().map(|(line, ..)| *line).collect();
    assert!(lines.contains(&2) && lines.contains(&3), "{problems:?}");
}

#[test]
fn test_port_with_the_device_of_another_port_is_refused() {
    let port =
        |n: u8, device: &str| format!("[[port]]\n{device}\naddresses = [\"10.{n}.0.1/24\"]\n");
    let two = |a: &str, b: &str| of_keys(&(port(0, a) + &port(1, b)));
    for (a, b, key) in [
        ("vdev = \"net_null0\"", "vdev = \"net_null0,size=64\"", "port[1].vdev"),
        ("pci = \"0000:3b:00.0\"", "pci = \"0000:3b:00.0\"", "port[1].pci"),
    ] {
        assert_eq!(two(a, b), [(key.to_owned(), "another port has this device".to_owned())]);
    }
}

#[test]
fn test_error_names_configuration_file_that_is_missing_or_invalid() {
    let e = Config::read(Path::new("/nonexistent/heddle.toml")).unwrap_err();
    assert!(e.to_string().contains("/nonexistent/heddle.toml"), "{e}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h.toml");
    std::fs::write(&path, "[log]\nlevel = \"loud\"\n").unwrap();
    let e = Config::read(&path).unwrap_err().to_string();
    assert!(e.contains(&format!("{}:2:9: log.level: 'loud'", path.display())), "{e}");
    assert_eq!(e.lines().count(), 2, "and no port: {e}");
}

/// Reads a file of this repository.
fn document(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    std::fs::read_to_string(root.join(path)).unwrap()
}

#[test]
fn test_example_configuration_parses_as_is_and_with_every_key() {
    let accounts = Accounts::parse("", "root:x:0:\n");
    let text = document("docs/heddle.toml");
    let plain = Config::parse(&text, &accounts).unwrap_or_else(|p| panic!("{p:?}"));
    assert_eq!(Config::parse(&plain.to_text().unwrap(), &accounts).as_ref(), Ok(&plain));
    // The default of a key is written as a comment without a space.
    let is_key =
        |l: &str| l.starts_with('#') && l[1..].starts_with(|c: char| c.is_ascii_lowercase());
    let full: Vec<_> = text.lines().map(|l| if is_key(l) { &l[1..] } else { l }).collect();
    let full = Config::parse(&full.join("\n"), &accounts).unwrap_or_else(|p| panic!("{p:?}"));
    // The values in these comments have to be the real defaults.
    assert_eq!((full.log, full.memory, full.limits), (plain.log, plain.memory, plain.limits));
    assert_eq!((full.workers.idle, full.keepalive), (plain.workers.idle, plain.keepalive));
    assert_eq!((full.shutdown, full.listen), (plain.shutdown, plain.listen));
    let usual = &plain.control.unwrap();
    assert_eq!(full.control.unwrap(), Control { group: Some(0), ..usual.clone() });
    let sharing = plain.sharing;
    let shown = (full.sharing.congestion, full.sharing.ecn);
    assert_eq!(shown, (sharing.congestion, sharing.ecn));
    let (full, plain) = (&full.clients[0].policy, &plain.clients[0].policy);
    // A rule without settings of TCP has those of the RNIC, which are shown.
    let tcp = TcpTerms {
        congestion: Some(sharing.congestion),
        ecn: Some(sharing.ecn),
        pacing: Some(sharing.pacing),
    };
    let want = Policy { connect: full.connect.clone(), tcp, ..plain.clone() };
    // The RNIC has as many windows as STags.
    assert_eq!(full, &want);
}

/// Returns the keys of a table, as the reader of the file lists them.
fn keys(head: &str, tail: &str) -> Vec<String> {
    let text = format!("{head}no_such_key = 1\n{tail}");
    let problems = Config::parse(&text, &accounts()).unwrap_err();
    let unknown = problems.iter().find(|p| p.text.contains("`no_such_key`")).unwrap();
    let text = unknown.text.split("; did you mean").next().unwrap();
    let (_, expected) = text.split_once("expected").expect("it says what there is");
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn test_guide_and_example_list_every_key_and_no_other() {
    let mut all = Vec::new();
    for section in keys("", "") {
        let head = match section.as_str() {
            "port" | "listen" | "client" => format!("[[{section}]]\n"),
            _ => format!("[{section}]\n"),
        };
        all.extend(keys(&head, "").into_iter().map(|key| format!("{section}.{key}")));
    }
    let route = keys("[[port]]\n[[port.routes]]\n", "");
    all.extend(route.into_iter().map(|key| format!("port.routes.{key}")));
    let bond = keys("[[port]]\n[port.bond]\n", "");
    all.extend(bond.into_iter().map(|key| format!("port.bond.{key}")));
    let vlan = keys("[[port]]\n[[port.vlan]]\n", "");
    all.extend(vlan.into_iter().map(|key| format!("port.vlan.{key}")));
    let route = keys("[[port]]\n[[port.vlan]]\n[[port.vlan.routes]]\n", "");
    all.extend(route.into_iter().map(|key| format!("port.vlan.routes.{key}")));
    let export = keys("[[listen]]\n[[listen.export]]\n", "");
    all.extend(export.into_iter().map(|key| format!("listen.export.{key}")));
    let forward = keys("[[listen]]\n[listen.forward]\n", "");
    all.extend(forward.into_iter().map(|key| format!("listen.forward.{key}")));
    assert!(all.len() > 40, "{all:?}");

    let guide = document("docs/guide/appliance.md");
    let listed = guide.lines().filter_map(|l| l.strip_prefix("| `")?.split_once("` |"));
    let mut listed: Vec<_> = listed.map(|(key, _)| key.to_owned()).collect();
    listed.sort();
    all.sort();
    assert_eq!(listed, all, "in the guide, and what there is");

    let example = document("docs/heddle.toml");
    for key in &all {
        // A port has either this key or the other.
        if key == "port.pci" {
            continue;
        }
        let name = key.rsplit('.').next().unwrap();
        let has = example.lines().any(|l| {
            // Entries that need more of the host than it has stand indented in a comment.
            let l = l.trim_start_matches('#').trim_start();
            l == format!("[{key}]")
                || l == format!("[[{key}]]")
                || l.starts_with(&format!("{name} ="))
                || l.contains(&format!("{{ {name} ="))
                || l.contains(&format!(", {name} ="))
        });
        assert!(has, "{key} is not in the example");
    }
}
