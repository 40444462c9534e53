//! Servers that send nonsense.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::thread::JoinHandle;

use heddle_shm::Sleeper;
use heddle_socket::wire::send;

use super::*;
use crate::CmEvent;
use crate::event::EventQueue;

const SMALL: OpenParams =
    OpenParams { memory: 4096, queues: AREA, pages: PageSize::Small, name: String::new() };

/// Opens a device at a server that answers `opened` with these descriptors to the first request,
/// then each of `lines` to one more.
fn server(
    opened: &str,
    fds: Vec<OwnedFd>,
    lines: &'static [&'static str],
) -> (Result<Device, DeviceError>, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let opened = opened.to_owned();
    let thread = std::thread::spawn(move || {
        let mut requests = BufReader::new(theirs.try_clone().unwrap()).lines();
        if requests.next().is_none() {
            return;
        }
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let _ = send(&theirs, opened.as_bytes(), &fds);
        for line in lines {
            // A message that asks nothing gets no answer, and may come between any two requests.
            let asks = |request: &Result<String, _>| {
                request.as_ref().map_or(true, |r| !r.contains("\"id\":0,"))
            };
            let Some(Ok(_)) = requests.find(asks) else { return };
            let _ = (&theirs).write_all(line.as_bytes());
        }
        // Read until the client has closed the socket.
        requests.for_each(drop);
    });
    (Device::open_on(ours, &SMALL), thread)
}

const AREA: usize = 64 << 10;

/// Returns any files that are sealed.
fn files(count: usize) -> Vec<OwnedFd> {
    let of = |_| Region::shared(4096).unwrap().fd().unwrap().try_clone_to_owned().unwrap();
    (0..count).map(of).collect()
}

fn opened(workers: usize, bells: usize, fds: u32) -> String {
    let limits = serde_json::to_string(&protocol::Limits::from(&DeviceLimits::default())).unwrap();
    format!(
        r#"{{"v":1,"id":1,"fds":{fds},"ok":{{"app":1,"workers":{workers},"bells":{bells},"limits":{limits}}}}}"#
    ) + "\n"
}

#[test]
fn test_device_of_another_process_is_not_local() {
    let (device, thread) = server(&opened(1, 0, 0), Vec::new(), &[]);
    assert!(!device.unwrap().is_local());
    thread.join().unwrap();
}

#[test]
fn test_invalid_device_answers_are_errors() {
    let good = opened(1, 0, 0);
    let (device, thread) = server(&good, Vec::new(), &[]);
    assert!(device.is_ok(), "{device:?}");
    drop(device);
    thread.join().unwrap();
    for (n, answer) in [
        opened(0, 0, 0),
        opened(usize::MAX, 0, 0),
        opened(1, AREA, 0),
        opened(1, 1, 0),
        opened(1, usize::MAX & !63, 0),
        opened(1, 0, 7),
        opened(1, 0, 2).replace("limits", "wakers\":[null,null],\"limits"),
        opened(1, 0, 1).replace("limits", "wakers\":[0],\"limits"),
        opened(1, 0, 0).replace("limits", "wakers\":[null],\"limits"),
        "{\"v\":1,\"id\":1,\"ok\":{}}\n".to_owned(),
        "{\"v\":1,\"id\":1}\n".to_owned(),
        "{\"v\":1,\"id\":1,\"error\":{\"kind\":\"denied\",\"text\":\"no\"}}\n".to_owned(),
        "{\"event\":{\"Listening\":{\"id\":1}}}\n17\n".to_owned(),
        "\u{0}\n".to_owned(),
    ]
    .into_iter()
    .enumerate()
    {
        let (device, thread) = server(&answer, files(2), &[]);
        assert!(device.is_err(), "{n}: {answer}");
        thread.join().unwrap();
    }
    // A file in place of the words that say which workers sleep, which could lose its pages.
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let answer = opened(1, 0, 1).replace("limits", "wakers\":[null],\"limits");
    let (device, thread) = server(&answer, vec![file.into()], &[]);
    assert!(device.is_err(), "{device:?}");
    thread.join().unwrap();
}

#[test]
fn test_invalid_later_answers_are_errors() {
    let good = opened(1, 0, 0);
    let (device, thread) = server(
        &good,
        Vec::new(),
        &[
            "{\"v\":1,\"id\":2,\"ok\":{\"pd\":3}}\n",
            "{\"v\":1,\"id\":3,\"ok\":{\"off\":64,\"words\":18446744073709551615}}\n",
            "{\"v\":1,\"id\":4,\"ok\":{\"off\":8192,\"words\":8}}\n",
            // A region that begins where the memory ends.
            "{\"v\":1,\"id\":5,\"ok\":{\"id\":1,\"stag\":256,\"to\":0,\"off\":4096}}\n",
            // An answer to no request, events of an unknown listener, and then nonsense.
            "{\"v\":1,\"id\":99,\"ok\":1}\n{\"event\":{\"Listening\":{\"id\":7}}}\nnonsense\n",
        ],
    );
    let device = device.unwrap();
    let pd = device.alloc_pd().unwrap();
    assert_eq!(pd, Pd(3));
    let sleeper = Sleeper::with_fd().unwrap();
    assert!(device.create_cq(8, Some(sleeper.waker())).is_err());
    // An area of zeros has no completion queue.
    assert!(device.create_cq(8, None).is_err());
    assert!(device.alloc_mr(pd, 64, heddle_types::Access::NONE).is_err());
    assert!(device.alloc_mr(pd, 5000, heddle_types::Access::NONE).is_err());
    let ended = || DeviceError::Ended {
        socket: "a socket without a name".into(),
        what: "has answered nonsense".into(),
    };
    assert_eq!(device.alloc_pd(), Err(ended()));
    assert_eq!(device.ended(), Some(ended()));
    let events = EventQueue::new(None);
    let at = "10.0.0.1:1".parse().unwrap();
    let refused = device.listen(at, crate::ListenParams::default(), &events);
    assert_eq!((refused, events.poll()), (Err(ended()), None::<CmEvent>));
    drop(device);
    thread.join().unwrap();
}
