//! Applications in processes of their own: the first works, the second is killed, the third writes
//! nonsense into its rings.
//!
//! The parent runs two RNICs joined by rings, both on its own thread. The parent makes devices for
//! its children, connects their queue pairs, and hands them the descriptors of their memory and
//! queues; from then on a child posts and polls without the parent. A third party, an application
//! of the parent on the same RNIC, must not notice anything that happens to the others.
//!
//! Other children open their devices themselves, through a socket that a thread of the parent
//! serves.
//!
//! There is no test harness: a child is this program again.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]
#![allow(clippy::cast_possible_truncation, reason = "bytes of a pattern")]

mod child;
mod client;
mod remote;
mod tenant;
mod world;

use std::time::{Duration, Instant};

use heddle_base::{Random, Seed};

use tenant::Tenant;
use world::{Neighbor, Numbers, World};

type Test = (&'static str, fn(&mut World));

const TESTS: [Test; 7] = [
    ("test_another_process_posts_a_million_operations", million),
    ("test_a_killed_process_gives_everything_back", killed),
    ("test_corrupted_rings_hurt_only_their_writer", nonsense),
    ("test_every_verb_works_through_a_socket", remote::every_verb),
    ("test_a_killed_client_gives_everything_back_within_a_second", remote::killed),
    ("test_clients_work_while_others_are_killed_over_and_over", remote::ten),
    ("test_hostile_clients_hurt_only_themselves", remote::hostile),
];

fn main() {
    if let Ok(spec) = std::env::var(child::SPEC) {
        return child::run(&spec);
    }
    if let Ok(path) = std::env::var(client::SOCKET) {
        return client::run(&path);
    }
    // These lines are the ones that a harness prints, for tools that list tests by name; none of
    // these tests is ignored.
    if std::env::args().any(|a| a == "--list") {
        let ignored = std::env::args().any(|a| a == "--ignored");
        let names = TESTS.iter().filter(|_| !ignored);
        return names.for_each(|(name, _)| println!("{name}: test"));
    }
    let filter: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let chosen: Vec<&Test> =
        TESTS.iter().filter(|t| filter.iter().all(|f| t.0.contains(f.as_str()))).collect();
    println!("\nrunning {} tests", chosen.len());
    let mut world = World::new();
    for (name, test) in &chosen {
        // A test compares numbers at its end, so nothing of the previous test may be left.
        world.until("nothing is left of the test before", |w| w.numbers() == Numbers::default());
        let start = Instant::now();
        test(&mut world);
        println!("test {name} ... ok ({:.1} s)", start.elapsed().as_secs_f64());
    }
    let others = TESTS.len() - chosen.len();
    println!(
        "\ntest result: ok. {} passed; 0 failed; 0 ignored; 0 measured; {others} filtered out",
        chosen.len()
    );
}

/// Every byte is right, in both directions, and the process sleeps between its rounds.
fn million(world: &mut World) {
    let before = world.numbers();
    let tenant = Tenant::new(world);
    let mut child = tenant.spawn(child::Work::Operations(1_000_000));
    let mut neighbor = Neighbor::new(world);
    let end = Instant::now() + Duration::from_secs(240);
    let status = loop {
        for _ in 0..1000 {
            world.poll();
        }
        neighbor.exchange(world);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < end, "the child takes too long");
    };
    assert!(status.success(), "the child says what was wrong: {status}");
    assert!(neighbor.rounds > 0);
    tenant.end(world);
    neighbor.end(world);
    world.until("everything comes back", |w| w.numbers() == before);
}

/// The child is killed at any moment; no other application loses anything, and all its resources
/// can be had again.
fn killed(world: &mut World) {
    const TIMES: u64 = 100;
    let mut random = Random::new(&Seed::from_u64(7));
    let before = world.numbers();
    let mut neighbor = Neighbor::new(world);
    let with_neighbor = world.numbers();
    for _ in 0..TIMES {
        let tenant = Tenant::new(world);
        let mut child = tenant.spawn(child::Work::UntilKilled);
        // The child has begun when its first data have arrived at the peer.
        world.until("the child posts", |w| tenant.has_sent(w));
        let until = Instant::now() + Duration::from_micros(random.below(10_000));
        while Instant::now() < until {
            world.poll();
        }
        child.kill().unwrap();
        let _ = child.wait().unwrap();
        neighbor.exchange(world);
        tenant.end(world);
        neighbor.exchange(world);
        world.until("everything comes back", |w| w.numbers() == with_neighbor);
    }
    assert!(world.peer_sent_nothing_foreign(), "bytes of a dead process were sent for another");
    neighbor.end(world);
    world.until("everything comes back", |w| w.numbers() == before);
}

/// The child writes every word that an application can write, with any value, at any time.
fn nonsense(world: &mut World) {
    const TIMES: u64 = 300;
    let mut random = Random::new(&Seed::from_u64(11));
    let mut neighbor = Neighbor::new(world);
    let numbers = world.numbers();
    let counted = world.broken();
    for round in 0..TIMES {
        let tenant = Tenant::new(world);
        tenant.scribble(&mut random, round);
        for _ in 0..50 {
            world.poll();
            if round % 3 == 0 {
                tenant.scribble(&mut random, round);
            }
        }
        neighbor.exchange(world);
        tenant.end(world);
        world.until("everything comes back", |w| w.numbers() == numbers);
    }
    neighbor.exchange(world);
    let found = world.broken() - counted;
    assert!(found > TIMES / 4, "of {TIMES} broken applications {found} were noticed");
    neighbor.end(world);
}
