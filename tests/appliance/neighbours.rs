//! A hostile application of one user beside an honest application of another user, and the cost to
//! the honest one.
//!
//! On a machine with two processors every program delays every other, and so does the host of a
//! virtual machine: a pause that the honest application sees proves nothing. But a hostile
//! application must not be able to make a worker *wait*. A spinning worker gives up its processor
//! only when the scheduler takes it away; the system counts how often a worker goes to sleep by
//! itself, in a call, for a lock or for a page.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use heddle::Seed;
use heddle_base::Random;
use serde_json::Value;

use crate::attacks::Stopped;
use crate::hostile_tenant::Target;
use crate::hostile_tenant::attacks::{ATTACKS, Attack, Course};
use crate::lab::{Appliance, PATIENCE, PEER, Running, heddle, listen};
use crate::net::{PEER_IFACE, SERVER};
use crate::tenants::{ANYBODY, USER, as_program};

/// The hostile user.
const STRANGER: u32 = 54_321;

/// The duration of each attack.
const ATTACK: Duration = Duration::from_millis(1500);

/// Returns how often the workers of an appliance have gone to sleep.
fn sleeps(a: &Appliance) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", a.pid())).unwrap();
    let mut workers = 0;
    let of = |task: std::path::PathBuf| {
        let read = |name| std::fs::read_to_string(task.join(name)).unwrap_or_default();
        if !read("comm").starts_with("heddle-w") {
            return 0;
        }
        workers += 1;
        let status = read("status");
        let count = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse::<u64>().unwrap()
    };
    let sum = tasks.map(|t| t.unwrap().path()).map(of).sum();
    assert!(workers > 0, "no worker");
    sum
}

/// Starts an RNIC on the peers' side, with services for both applications.
fn peer(a: &Appliance) -> Running {
    let mut c = heddle();
    let vdev = format!("net_af_packet0,iface={PEER_IFACE}");
    c.args(["serve", "--vdev", &vdev, "--ip", &format!("{PEER}/16")]);
    c.args(["--listen", &format!("{PEER}:7174=rping"), "--listen", &format!("{PEER}:7175=sink")]);
    c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    Running(a.lab.peers.run(|| c.spawn()).unwrap())
}

/// Starts the honest application.
fn honest(a: &Appliance) -> Running {
    let args = ["rping", "-c", "-V", "-S", "1000", "-a", PEER, "-p", "7174"];
    Running(as_program(a, &args).spawn().unwrap())
}

/// Returns the bytes that the honest application has received.
fn received(a: &Appliance) -> Option<u64> {
    let conns = a.ask(&["conns"]);
    let conns = conns["conns"].as_array().unwrap();
    let of = |c: &&Value| c["remote"] == format!("{PEER}:7174").as_str();
    conns.iter().find(of)?["tcp"]["received"].as_u64()
}

/// Returns the things that the hostile user attacks.
fn target(a: &Appliance) -> Target {
    let at = |ip: &str, port| format!("{ip}:{port}").parse().unwrap();
    let server = SERVER.to_string();
    Target {
        socket: a.socket(),
        user: Some(STRANGER),
        service: at(PEER, 7175),
        nobody: at("10.77.0.200", 7175),
        own: at(&server, 9300),
        forbidden: vec![at(&server, 7174)],
    }
}

#[test]
fn test_hostile_application_delays_no_worker_and_takes_no_share_of_another() {
    let a = Appliance::start(&(ANYBODY.to_owned() + &listen(7174, "rping")));
    let target = target(&a);
    let _peer = peer(&a);
    let mut program = honest(&a);
    let until = Instant::now() + PATIENCE;
    while received(&a).is_none_or(|n| n == 0) {
        assert!(Instant::now() < until, "it does not begin");
        if program.0.try_wait().unwrap().is_some() {
            // The program ended because its peer was not up yet, so start it again.
            program = honest(&a);
        }
        thread::sleep(Duration::from_millis(20));
    }

    // Check that the count sees a worker that stands still.
    let before = sleeps(&a);
    drop(Stopped::new(&a));
    assert!(sleeps(&a) > before);

    let measure = |attack: &dyn Fn(&mut Course)| {
        let (slept, moved, start) = (sleeps(&a), received(&a).unwrap(), Instant::now());
        let random = Random::new(&Seed::from_u64(1));
        attack(&mut Course { until: start + ATTACK, random });
        let moved = received(&a).expect("its connection stands") - moved;
        let rate = f64::from(u32::try_from(moved).unwrap()) / start.elapsed().as_secs_f64();
        (sleeps(&a) - slept, rate)
    };
    // The baseline: an attack that only takes a processor.
    let (_, usual) = measure(&|course| while course.goes_on() {});
    for Attack { name: what, run } in ATTACKS {
        // The kernel puts a worker that allocates to sleep while another thread changes the
        // mappings of the process. This is rare, while an attack that makes workers wait does it in
        // each round. So one calm round of three is enough.
        let mut rounds = (0..3).map(|_| measure(&|course| run(&target, course).unwrap()));
        let calm = rounds.find(|(slept, rate)| {
            println!(
                "{what}: workers slept {slept} times; {:.2} of the usual goodput",
                rate / usual
            );
            *slept == 0
        });
        let (_, rate) = calm.unwrap_or_else(|| panic!("{what}: a worker has waited"));
        // Other programs of the machine also lower the rate, but only a stall lowers it so far.
        assert!(rate > usual / 50.0, "{what}: {rate} bytes a second, {usual} usually");
        assert!(
            program.0.try_wait().unwrap().is_none(),
            "{what}: the honest application has ended"
        );
    }
    // The attack has taken nothing for good: all other clients go away.
    let until = Instant::now() + PATIENCE;
    let others = || {
        let clients = a.ask(&["status"])["clients"].as_array().unwrap().clone();
        clients.iter().filter(|c| c["uid"] != USER).count()
    };
    while others() > 0 {
        assert!(Instant::now() < until, "{}", a.ask(&["status"]));
        thread::sleep(Duration::from_millis(20));
    }
}
