use heddle_base::Seed;
use heddle_ctl::{Endpoint, EndpointConfig};
use heddle_dataplane::{Eal, EalConfig, Hugepages};

use super::*;

#[test]
fn test_service_change_is_listed_by_the_time_it_is_answered() {
    let memory = EalConfig { hugepages: Hugepages::Never, ..EalConfig::default() };
    let eal = Eal::init(&memory).expect("DPDK starts");
    let config = EndpointConfig::with_seed(
        vec!["10.0.0.1/24".parse().expect("a network")],
        Seed::from_u64(1),
    );
    let (mut rnic, _peer) =
        Endpoint::ring_pair(&eal, "listed", &config, &config).expect("two RNICs");
    let services = ServiceThread::start(rnic.device().clone()).expect("a thread");
    let base = tempfile::tempdir().expect("a directory");
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    let tcp = free.expect("a port");
    let nfs = format!("10.0.0.1:20049=nfs:{},tcp={tcp}", base.path().display());
    let mut told = |order: &dyn Fn(Done)| {
        let (hears, heard) = crossbeam_channel::bounded(1);
        let all = Arc::clone(&services.shown);
        // The check runs on the thread that answers, which therefore does nothing else at the time.
        order(Box::new(move |answer| {
            let shown = lock(&all).list.iter().map(|(_, stage)| *stage).collect::<Vec<_>>();
            let _ = hears.send((answer, shown));
        }));
        loop {
            rnic.poll();
            match heard.try_recv() {
                Ok(heard) => break heard,
                Err(e) => assert!(!e.is_disconnected(), "nobody was told"),
            }
        }
    };
    // Each service starts twice: a caller that hears of the stop finds the places free.
    for spec in ["10.0.0.1:9=sink", "10.0.0.1:9=sink", &nfs, &nfs] {
        let spec: ServiceSpec = spec.parse().expect("a service");
        let start = |done| {
            let opened = spec.kind.nfs().map(|nfs| {
                let mut opened = Opened::new(nfs).expect("it is there");
                opened.bind(nfs).expect("it is free");
                opened
            });
            let terms = Terms {
                params: ListenParams::default(),
                limits: Limits::default(),
                quota: Quota { memory: 8 << 20, peer_share: 1 },
                opened,
            };
            services.add(spec.clone(), terms, done);
        };
        assert_eq!(told(&start), (Ok(()), vec![Stage::Listening]));
        // The service has no connections that it would have to wait for.
        assert_eq!(told(&|done| services.stop(spec.addr, done)), (Ok(()), vec![]));
    }
}

#[test]
fn test_running_listener_that_fails_is_shown_as_failed() {
    let gone = ListenFailure::AddressRemoved;
    let failed = Stage::Failed(gone);
    assert_eq!(Stage::Starting.after(Ok(false)), Stage::Starting);
    assert_eq!(Stage::Starting.after(Ok(true)), Stage::Listening);
    assert_eq!(Stage::Starting.after(Err(gone)), failed);
    assert_eq!(Stage::Listening.after(Ok(true)), Stage::Listening);
    assert_eq!(Stage::Listening.after(Err(gone)), failed);
    // A failed service stays failed, and the end of a stopping service is no failure.
    assert_eq!(failed.after(Err(ListenFailure::Withdrawn)), failed);
    assert_eq!(Stage::Ending.after(Err(gone)), Stage::Ending);
    assert_eq!(failed.describe(), "failed: the address was removed");
    assert_eq!(Stage::Ending.describe(), "ending");
}
