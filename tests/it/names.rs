//! Every type that an application can reach through the library it can also name, to keep it in a
//! structure or pass it on: each type in a public field, variant or signature of the front.

use std::sync::Arc;

use heddle::Seed;
use heddle::connection::{DialogueError, FrameError, StartupError, TermCode};
use heddle::counters::{
    ConnCounters, FaultCounters, MemoryCounters, QpCounters, References, RnicCounters, RnicSums,
    RxCounters, StackCounters, SteerCounters, TxBuildCounters, TxCounters, WorkerCounters,
    WorkerSnapshot,
};
use heddle::hub::{ControlPlane, Hub, MrTable, RegionTable, Registry};
use heddle::iwarp::{CopiedHeader, DdpError, DdpHeader, Msn, Qn, ReadRequest, Terminate};
use heddle::memory::{MrError, RegisterError};

/// Each group of a worker's counters.
struct Groups {
    worker: WorkerCounters,
    rnic: RnicCounters,
    stack: StackCounters,
    tcp: ConnCounters,
    qps: QpCounters,
    sink: TxBuildCounters,
    memory: MemoryCounters,
    rx: RxCounters,
    tx: TxCounters,
    steer: SteerCounters,
    fault: FaultCounters,
}

/// The pattern has no `..`, so that a new group must get a name here.
fn groups(s: WorkerSnapshot) -> Groups {
    let WorkerSnapshot {
        worker,
        engine: RnicSums { rnic, stack, tcp, qps },
        sink,
        memory,
        rx,
        tx,
        steer,
        fault,
        times: _,
        buffers: _,
    } = s;
    Groups { worker, rnic, stack, tcp, qps, sink, memory, rx, tx, steer, fault }
}

fn frame_error(e: DialogueError) -> Option<FrameError> {
    let DialogueError::Mpa(e): DialogueError = e;
    if let StartupError::Frame(e) = e { Some(e) } else { None }
}

fn table_error(e: RegisterError) -> Option<MrError> {
    if let RegisterError::Mr(e) = e { Some(e) } else { None }
}

/// Returns what the peer refused: a message with this number in that queue, or a Read.
fn refused(t: &Terminate) -> Result<Option<(Qn, Msn)>, DdpError> {
    let _: Option<ReadRequest> = t.read_request;
    let header: Option<CopiedHeader> = t.ddp;
    Ok(match header.map(|h| h.header()).transpose()? {
        Some(DdpHeader::Untagged { qn, msn, .. }) => Some((qn, msn)),
        Some(DdpHeader::Tagged { .. }) | None => None,
    })
}

#[test]
fn test_library_exports_types_of_terminate_contents() {
    assert_eq!(refused(&Terminate::new(TermCode::DDP_BOUNDS)), Ok(None));
}

fn hub(
    mrs: Arc<MrTable>,
    regions: Arc<RegionTable>,
    references: Arc<dyn References>,
    control: Box<dyn ControlPlane>,
    seed: &Seed,
) -> Arc<Hub> {
    let registry = Registry::new(mrs, regions);
    registry.add_references(references);
    Hub::new(Arc::new(registry), control, 1, seed)
}

const _: HubMaker = hub;
type HubMaker = fn(
    Arc<MrTable>,
    Arc<RegionTable>,
    Arc<dyn References>,
    Box<dyn ControlPlane>,
    &Seed,
) -> Arc<Hub>;

#[test]
fn test_library_exports_types_of_worker_counters() {
    let g = groups(WorkerSnapshot::default());
    let polls = g.worker.polls + g.rnic.rx_direct + g.stack.rx_frames;
    let _kept = (g.tcp, g.qps, g.sink, g.memory, g.rx, g.tx, g.steer, g.fault);
    assert_eq!(polls, 0);
}

#[test]
fn test_library_exports_startup_error_types_down_to_the_frame() {
    let e = FrameError::Key { at: 3 };
    assert_eq!(frame_error(DialogueError::Mpa(e.into())), Some(e));
    assert_eq!(frame_error(DialogueError::Mpa(StartupError::TrailingBytes)), None);
    assert_eq!(table_error(MrError::Wrap.into()), Some(MrError::Wrap));
}
