//! A worker with its port, and a device with one of each object, for an application that has no
//! control plane: the test gives the worker its orders.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::sync::{Arc, Mutex};

use heddle_base::Seed;
use heddle_dataplane::worker::{Command, CommandSender, ReportReceiver, Worker, WorkerConfig};
use heddle_dataplane::{Clock, Doorbells, DpdkRegions, ExternalMemory, Mempool, Port, RxMbuf};
use heddle_engine::Engine;
use heddle_hub::memory::{RegionTable, Registry};
use heddle_hub::{ControlPlane, ControlRequest, DeviceConfig, Hub};
use heddle_mr::MrTable;
use heddle_types::Access;
use heddle_verbs::{Cq, Device, DeviceError, Mr, Qp, QpInit};

/// A control plane that only passes the worker the application's doorbells.
#[derive(Debug)]
struct NoControl<E: Engine>(Arc<Mutex<CommandSender<E>>>);

impl<E: Engine + 'static> ControlPlane for NoControl<E> {
    fn request(&self, request: ControlRequest) -> Result<(), DeviceError> {
        if let ControlRequest::Open { app, bells, share, .. } = request {
            let open = Command::OpenApp(Doorbells::new(app, bells, share));
            self.0.lock().unwrap().send(open).map_err(|_| DeviceError::Overloaded)?;
        }
        Ok(())
    }
}

/// The objects of a side.
#[derive(Clone, Copy, Debug)]
pub struct Objects {
    /// Bytes of the memory region.
    pub memory: usize,
    pub access: Access,
    /// The depth of both queues of the queue pair.
    pub depth: u32,
}

pub struct Side<E: Engine<Frame = RxMbuf> + 'static> {
    pub worker: Worker<E>,
    commands: Arc<Mutex<CommandSender<E>>>,
    pub reports: ReportReceiver<E>,
    pub registry: Arc<Registry>,
    pub external: ExternalMemory,
    pub device: Device,
    pub mr: Mr,
    pub cq: Cq,
    pub qp: Qp,
    _port: Port,
}

impl<E: Engine<Frame = RxMbuf> + 'static> Side<E> {
    /// Makes a worker on the first queues of a port.
    pub fn new(
        engine: E::Config,
        mut port: Port,
        pool: Mempool,
        clock: &Clock,
        seed: &Seed,
        objects: Objects,
    ) -> Side<E> {
        let mrs = Arc::new(MrTable::new(seed, 4096));
        let regions = Arc::new(RegionTable::new(4, Some(Box::new(DpdkRegions::new(port.dma())))));
        let external = ExternalMemory::new(mrs.capacity());
        let registry = Arc::new(Registry::new(mrs.clone(), regions.clone()));
        let (rx, tx) = port.take_queues().pop().unwrap();
        let (worker, commands, reports) = Worker::new(WorkerConfig {
            index: 0,
            engine,
            rx: rx.into(),
            tx: tx.into(),
            pool,
            regions,
            external: external.clone(),
            mrs,
            clock: clock.clone(),
            fault: None,
            rx_burst: 32,
            waker: None,
        });
        let commands = Arc::new(Mutex::new(commands));
        let control = Box::new(NoControl(commands.clone()));
        let hub = Hub::new(registry.clone(), control, 1, seed);
        let Objects { memory, access, depth } = objects;
        let device = hub.open(&DeviceConfig { memory, ..DeviceConfig::default() }).unwrap();
        let pd = device.alloc_pd().unwrap();
        let mr = device.alloc_mr(pd, memory, access).unwrap();
        let cq = device.create_cq(256, None).unwrap();
        let qp = device.create_qp(pd, QpInit::new(cq.clone()).depths(depth, depth)).unwrap();
        Side { worker, commands, reports, registry, external, device, mr, cq, qp, _port: port }
    }

    pub fn order(&self, command: Command<E>) {
        self.commands.lock().unwrap().send(command).unwrap();
    }
}
