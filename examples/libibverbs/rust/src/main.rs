//! mirror - data over RDMA from Rust, by librdmacm and libibverbs (the crate `sideway`).
//!
//!     heddle run -- mirror server PORT
//!     heddle run -- mirror client ADDRESS PORT
//!
//! The client sends the place of its memory: address (8 bytes), rkey and length (4 each),
//! big-endian. The server reads that memory, reverses the order of the bytes, writes them back, and
//! sends an empty message. The client compares. The two do this several times, and the server ends
//! with its client. The program in ../go uses the same protocol.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{
    GenericCompletionQueue, PollCompletionQueueError, WorkCompletionStatus,
};
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::queue_pair::{
    ExtendedQueuePair, PostSendGuard, QueuePair, QueuePairState, SendOperationFlags,
    SetScatterGatherEntry, WorkRequestFlags,
};
use sideway::rdmacm::communication_manager::{
    ConnectionParameter, EventChannel, EventType, Identifier, PortSpace,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The number of bytes that the server reverses.
const SIZE: usize = 300_000;
const ROUNDS: u8 = 10;
const PATIENCE: Duration = Duration::from_secs(10);

/// Work request IDs: each tells which request a completion ends.
const RECV: u64 = 1;
const SEND: u64 = 2;
const READ: u64 = 3;
const WRITE: u64 = 4;

/// Memory that stays registered as long as this value lives.
struct Buffer {
    region: Arc<MemoryRegion>,
    bytes: Vec<u8>,
}

impl Buffer {
    /// Returns the place of the buffer's first `len` bytes, for a work request.
    fn sge(&self, len: usize) -> (u32, u64, u32) {
        (self.region.lkey(), self.bytes.as_ptr() as u64, len as u32)
    }
}

/// An end of a connection. Rust drops the queue pair before the memory that its requests refer to.
struct End {
    qp: ExtendedQueuePair,
    cq: GenericCompletionQueue,
    data: Buffer,
    message: Buffer,
    id: Arc<Identifier>,
}

impl End {
    fn new(id: Arc<Identifier>) -> Result<End> {
        let context = id.get_device_context().ok_or("the identifier has no device")?;
        let pd = context.alloc_pd()?;
        let cq =
            GenericCompletionQueue::from(context.create_cq_builder().setup_cqe(16).build_ex()?);
        let qp = pd
            .create_qp_builder()
            .setup_send_cq(cq.clone())
            .setup_recv_cq(cq.clone())
            .setup_max_send_wr(4)
            .setup_max_recv_wr(4)
            // An iWARP device has no Immediate Data in Sends and Writes, for which the crate asks
            // by default.
            .setup_send_ops_flags(
                SendOperationFlags::Send | SendOperationFlags::Write | SendOperationFlags::Read,
            )
            .build_ex()?;
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteRead | AccessFlags::RemoteWrite;
        let register = |len: usize| -> Result<Buffer> {
            let bytes = vec![0; len];
            // SAFETY: a Vec that is not resized stays in place as long as the Buffer lives.
            let region = unsafe { pd.reg_mr(bytes.as_ptr() as usize, len, access)? };
            Ok(Buffer { region, bytes })
        };
        let (data, message) = (register(SIZE)?, register(16)?);
        Ok(End { qp, cq, data, message, id })
    }

    /// Moves the queue pair through the states that librdmacm gives for a connection.
    fn run(&mut self) -> Result<()> {
        for state in
            [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend]
        {
            self.qp.modify(&self.id.get_qp_attr(state)?)?;
        }
        Ok(())
    }

    fn parameters(&self) -> ConnectionParameter {
        let mut parameters = ConnectionParameter::default();
        parameters.setup_qp_number(self.qp.qp_number());
        parameters
    }

    fn receive(&mut self) -> Result<()> {
        let (lkey, address, len) = self.message.sge(16);
        let mut post = self.qp.start_post_recv();
        // SAFETY: the message's memory lives as long as the queue pair.
        unsafe { post.construct_wr(RECV).setup_sge(lkey, address, len) };
        Ok(post.post()?)
    }

    fn send(&mut self, len: usize) -> Result<()> {
        let (lkey, address, len) = self.message.sge(len);
        let mut post = self.qp.start_post_send();
        // SAFETY: the message's memory lives as long as the queue pair.
        unsafe {
            post.construct_wr(SEND, WorkRequestFlags::Signaled)
                .setup_send()
                .setup_sge(lkey, address, len)
        };
        post.post()?;
        self.complete(SEND)
    }

    /// Moves the peer's memory to `data`, or back.
    fn copy(&mut self, what: u64, (address, rkey, len): (u64, u32, usize)) -> Result<()> {
        let (lkey, local, len) = self.data.sge(len);
        let mut post = self.qp.start_post_send();
        let request = post.construct_wr(what, WorkRequestFlags::Signaled);
        let request = if what == READ {
            request.setup_read(rkey, address)
        } else {
            request.setup_write(rkey, address)
        };
        // SAFETY: the memory lives as long as the queue pair, and this thread waits for the
        // completion.
        unsafe { request.setup_sge(lkey, local, len) };
        post.post()?;
        self.complete(what)
    }

    /// Polls for the next completion, which has to belong to this request.
    fn complete(&mut self, what: u64) -> Result<()> {
        loop {
            match self.cq.start_poll() {
                Ok(mut poller) => {
                    let Some(completion) = poller.next() else { continue };
                    if completion.status() != WorkCompletionStatus::Success as u32 {
                        let status = WorkCompletionStatus::from(completion.status());
                        return Err(format!("request {}: {status:?}", completion.wr_id()).into());
                    }
                    return match completion.wr_id() {
                        id if id == what => Ok(()),
                        id => Err(format!("completion of {id}, expected {what}").into()),
                    };
                }
                Err(PollCompletionQueueError::CompletionQueueEmpty) => std::thread::yield_now(),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Returns the next event, and the identifier to which the event belongs.
fn next(channel: &Arc<EventChannel>) -> Result<(EventType, Arc<Identifier>)> {
    let event = channel.get_cm_event()?;
    let (kind, status, id) = (event.event_type(), event.status(), event.cm_id());
    event.ack()?;
    if status != 0 {
        return Err(format!("{kind:?}: {status}").into());
    }
    Ok((kind, id.ok_or("an event without an identifier")?))
}

/// Waits for the event, and returns the identifier to which the event belongs.
fn wait(channel: &Arc<EventChannel>, wanted: EventType) -> Result<Arc<Identifier>> {
    match next(channel)? {
        (kind, id) if kind == wanted => Ok(id),
        (kind, _) => Err(format!("{kind:?}, expected {wanted:?}").into()),
    }
}

fn serve(port: u16) -> Result<()> {
    let channel = EventChannel::new()?;
    let listener = channel.create_id(PortSpace::Tcp)?;
    listener.bind_addr((Ipv4Addr::UNSPECIFIED, port).into())?;
    listener.listen(1)?;
    let mut end = End::new(wait(&channel, EventType::ConnectRequest)?)?;
    end.run()?;
    end.receive()?;
    end.id.accept(end.parameters())?;
    wait(&channel, EventType::Established)?;
    for round in 0..ROUNDS {
        end.complete(RECV)?;
        let (bytes, word) = (&end.message.bytes, |at: &[u8]| {
            u32::from_be_bytes(at.try_into().unwrap_or_default())
        });
        let address = u64::from(word(&bytes[..4])) << 32 | u64::from(word(&bytes[4..8]));
        let peer = (address, word(&bytes[8..12]), (word(&bytes[12..]) as usize).min(SIZE));
        end.copy(READ, peer)?;
        end.data.bytes[..peer.2].reverse();
        end.copy(WRITE, peer)?;
        if round + 1 < ROUNDS {
            end.receive()?;
        }
        // The client may read the written bytes: the Send arrives after the Write before it.
        end.send(0)?;
    }
    wait(&channel, EventType::Disconnected)?;
    end.id.disconnect()?;
    Ok(())
}

fn ask(server: SocketAddr) -> Result<()> {
    let channel = EventChannel::new()?;
    let id = channel.create_id(PortSpace::Tcp)?;
    id.resolve_addr(None, server, PATIENCE)?;
    wait(&channel, EventType::AddressResolved)?;
    id.resolve_route(PATIENCE)?;
    wait(&channel, EventType::RouteResolved)?;
    let mut end = End::new(id)?;
    end.id.connect(end.parameters())?;
    match next(&channel)?.0 {
        // An iWARP device moves its queue pairs through the states by itself.
        EventType::Established => {}
        EventType::ConnectResponse => {
            end.run()?;
            end.id.establish()?;
        }
        kind => return Err(format!("{kind:?}, expected an answer").into()),
    }
    for round in 0..ROUNDS {
        let pattern = |i: usize| (i.wrapping_mul(31) >> 3) as u8 ^ round;
        end.data.bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(i));
        end.receive()?;
        let address = end.data.bytes.as_ptr() as u64;
        end.message.bytes[..8].copy_from_slice(&address.to_be_bytes());
        end.message.bytes[8..12].copy_from_slice(&end.data.region.rkey().to_be_bytes());
        end.message.bytes[12..].copy_from_slice(&(SIZE as u32).to_be_bytes());
        end.send(16)?;
        end.complete(RECV)?;
        if let Some(at) = (0..SIZE).find(|&i| end.data.bytes[SIZE - 1 - i] != pattern(i)) {
            return Err(format!("round {round}: byte {at} is not what was sent").into());
        }
    }
    end.id.disconnect()?;
    wait(&channel, EventType::Disconnected)?;
    println!("{ROUNDS} rounds of {SIZE} bytes came back mirrored");
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", port] => serve(port.parse()?),
        ["client", address, port] => ask(SocketAddr::new(address.parse()?, port.parse()?)),
        _ => Err("usage: mirror server PORT | mirror client ADDRESS PORT".into()),
    }
}
