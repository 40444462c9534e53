use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use heddle_rings::{Area, Bells};

use super::*;
use crate::cq::Cq;
use crate::limits::count::Count;
use crate::qp::{Owner, Qp, QpInit};

/// Rounds; without the rule of [`Routes`], a round in some hundred stops for good.
const ROUNDS: usize = 20_000;

/// A thread hands out the end of a connection while another drops the last handle of its queue
/// pair, which locks the routes as the queue pair of a [`Remote`](super::super::Remote) does.
#[test]
fn test_queue_pair_is_dropped_while_its_connection_ends() {
    let routes: Arc<Mutex<Routes>> = Arc::default();
    let area: Arc<Area> = Area::new(1 << 18).unwrap();
    let bells = Bells::new(&area, 1).unwrap();
    let place = Count::default().take("queues", 1).unwrap();
    let cq = Cq::new(&area, 3, 64, 1, None, place).unwrap();
    let events = EventQueue::new(None);
    let forgotten = Arc::new(AtomicUsize::new(0));

    let (round, next) = channel::<CmId>();
    let (done, told) = channel();
    let turn = Arc::new(AtomicUsize::new(0));
    let reader = std::thread::spawn({
        let (routes, turn) = (routes.clone(), turn.clone());
        move || {
            for (n, id) in next.iter().enumerate() {
                turn.store(n + 1, Ordering::Release);
                let (qpn, reason) = (Qpn(5), DisconnectReason::Orderly);
                let event = Event::Disconnected { id, qpn, reason, terminate: None };
                routes.lock().unwrap().tell(event);
                done.send(()).unwrap();
            }
        }
    });
    let program = std::thread::spawn({
        let forgotten = forgotten.clone();
        move || {
            for n in 0..ROUNDS {
                let init = QpInit::new(cq.clone()).depths(1, 1);
                let (theirs, forgotten) = (routes.clone(), forgotten.clone());
                let owner = Owner::new(move || {
                    theirs.lock().unwrap().forget_qp(Qpn(5));
                    forgotten.fetch_add(1, Ordering::Relaxed);
                });
                let qp = Qp::new(&area, crate::qp::testing::parts(bells.clone(), 3), init, owner)
                    .unwrap();
                let id = CmId(n as u64);
                routes.lock().unwrap().connect(id.0, events.clone(), qp.weak_claim());
                round.send(id).unwrap();
                while turn.load(Ordering::Acquire) <= n {
                    std::hint::spin_loop();
                }
                // Drop the queue pair at another moment of the hand-out each time.
                for _ in 0..n % 64 {
                    std::hint::spin_loop();
                }
                drop(qp);
                told.recv().unwrap();
                while events.poll().is_some() {}
            }
        }
    });
    let (ended, end) = channel();
    std::thread::spawn(move || {
        program.join().unwrap();
        reader.join().unwrap();
        ended.send(()).unwrap();
    });
    end.recv_timeout(Duration::from_secs(60)).expect("no thread waits for itself");
    assert_eq!(forgotten.load(Ordering::Relaxed), ROUNDS);
}
