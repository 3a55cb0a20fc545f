//! Time from a head to its lease and of a hand-over between two queues, as multiples of a bare round trip over a Unix socket in the same run, and
//! CPU time of the service with 256 queues and a hundred requests a second.
//!
//! `cargo bench -p gpu-sidecar --bench lease`

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use annotations::{Evict, Isolation};
use gpu_sidecar::config::TokenSettings;
use gpu_sidecar::events::Events;
use gpu_sidecar::service;
use gpu_sidecar::state::{
    Command, DeviceMemory, Pod, PodKey, PodSettings, ServiceHandle, ServiceSettings, Slot, SlotKey,
    SlotKind,
};
use protocol::message::MESSAGE_MAX;
use protocol::queue::{FromQueue, ToQueue, TraceContext};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    listen, recv, send, socket_with, socketpair,
};
use rustix::time::{ClockId, clock_gettime};

type BenchResult<T> = Result<T, Box<dyn std::error::Error>>;

const ROUNDS: usize = 5_000;
/// Slots of a service, and number of services, for leases of free slots.
const SLOTS: u32 = 64;
const SERVICES: usize = 20;
const PODS: u32 = 256;
const RATE: u32 = 100;
const SPAN: Duration = Duration::from_secs(5);
/// Pause between two measurements, as long for all of them.
const PAUSE: Duration = Duration::from_micros(300);

fn seqpacket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn listener(path: &Path) -> rustix::io::Result<OwnedFd> {
    let listener = seqpacket()?;
    rustix::io::ioctl_fionbio(&listener, true)?;
    bind(&listener, &SocketAddrUnix::new(path)?)?;
    listen(&listener, 8)?;
    Ok(listener)
}

/// Starts a service with exclusive slots, among which the pods are spread.
fn node(folder: &Path, slots: u32, pods: u32) -> BenchResult<ServiceHandle> {
    let handle = service::start(ServiceSettings {
        tokens: TokenSettings::default(),
        memory: agent_core::MemorySettings::default(),
        events: Arc::new(Events::default()),
        device_memory: Arc::new(DeviceMemory::default()),
        record: None,
    })?;
    for key in 0..slots {
        handle.send(Command::SlotAdded(Arc::new(Slot {
            key: SlotKey(key),
            name: key.to_string(),
            uuid: format!("GPU-00000000-0000-0000-0000-{key:012}"),
            product: "bench".to_owned(),
            kind: SlotKind::Exclusive,
            sms: None,
            memory_bytes: 80 << 30,
            compute_capability: Some((9, 0)),
            client_limit: 1_000,
            seats: 1_000,
            context_residue: None,
            host_path: key,
            numa_nodes: Vec::new(),
            models_memory: None,
            mps_pipe: None,
            mig: None,
        })))?;
    }
    for key in 0..pods {
        let own = folder.join(key.to_string());
        std::fs::create_dir_all(&own)?;
        let pod = Pod {
            key: PodKey(key),
            serial: u64::from(key) + 1,
            name: key.to_string(),
            namespace: "bench".to_owned(),
            function: format!("function-{key}"),
            revision: "bench".to_owned(),
            uid: None,
            cgroup: None,
            pod_name: None,
            mps_mount: None,
            settings: PodSettings {
                isolation: Isolation::Tenant,
                sm_hundredths: 10_000,
                quota_request_ppm: 0,
                quota_limit_ppm: 1_000_000,
                gpu_memory: None,
                evict: Evict::Host,
                slo: Some(Duration::from_millis(80)),
                slo_percentile_ppm: 980_000,
                version: String::new(),
                is_pipeline: false,
            },
            slot: SlotKey(key % slots),
            folder: own.clone(),
        };
        handle.send(Command::PodAdded {
            pod: Arc::new(pod),
            listener: listener(&own.join("gpu.sock"))?,
            queue: Some(listener(&own.join("queue.sock"))?),
        })?;
    }
    // Nothing is granted before processes of an earlier agent could have been found.
    std::thread::park_timeout(Duration::from_millis(400));
    Ok(handle)
}

struct Queue(OwnedFd);

impl Queue {
    fn new(folder: &Path, pod: u32) -> BenchResult<Self> {
        let connection = seqpacket()?;
        let path = folder.join(pod.to_string()).join("queue.sock");
        connect(&connection, &SocketAddrUnix::new(path)?)?;
        let queue = Self(connection);
        queue.send(&FromQueue::Hello {
            again: false,
            epoch: 0,
            running: 0,
            waiting: 0,
            address: String::new(),
            port: 0,
        })?;
        let ToQueue::Welcome { .. } = queue.receive()? else {
            return Err("not welcome".into());
        };
        Ok(queue)
    }

    fn send(&self, message: &FromQueue) -> BenchResult<()> {
        let _bytes = send(&self.0, message.write().finish(), SendFlags::empty())?;
        Ok(())
    }

    /// Returns the next message but those about the model.
    fn receive(&self) -> BenchResult<ToQueue> {
        let mut bytes = [0; MESSAGE_MAX];
        loop {
            let (read, _) = recv(&self.0, &mut bytes[..], RecvFlags::empty())?;
            match ToQueue::read(&bytes[..read])? {
                ToQueue::State { .. } => {}
                message => return Ok(message),
            }
        }
    }

    fn head(&self) -> BenchResult<()> {
        let now = clock_gettime(ClockId::Monotonic);
        let now = u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec)?;
        self.send(&FromQueue::Head {
            seq: 1,
            deadline: now + 80_000_000,
            estimate: 5_000_000,
            requests: 0,
            in_time: 0,
            waiting: 1,
            trace: TraceContext::default(),
            may_move: true,
        })
    }

    fn lease(&self) -> BenchResult<u64> {
        match self.receive()? {
            ToQueue::Lease { epoch } => Ok(epoch),
            other => Err(format!("no lease: {other:?}").into()),
        }
    }

    fn idle(&self, epoch: u64) -> BenchResult<()> {
        self.send(&FromQueue::Idle { epoch, ends: false })
    }

    /// Answers a recall.
    fn give_back(&self) -> BenchResult<()> {
        match self.receive()? {
            ToQueue::Recall { epoch } => self.send(&FromQueue::Idle { epoch, ends: true }),
            other => Err(format!("no recall: {other:?}").into()),
        }
    }
}

fn percentiles(mut spans: Vec<Duration>) -> (Duration, Duration) {
    spans.sort_unstable();
    let at = |part: usize| spans.get(spans.len() * part / 100).copied();
    (at(50).unwrap_or_default(), at(99).unwrap_or_default())
}

fn ping_pong() -> BenchResult<(Duration, Duration)> {
    let (near, far) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let echo = std::thread::spawn(move || {
        let mut bytes = [0; 128];
        while let Ok((read, _)) = recv(&far, &mut bytes, RecvFlags::empty()) {
            if read == 0 || send(&far, &bytes[..read], SendFlags::empty()).is_err() {
                return;
            }
        }
    });
    let mut spans = Vec::with_capacity(ROUNDS);
    let mut bytes = [0; 128];
    for _round in 0..ROUNDS {
        std::thread::park_timeout(PAUSE);
        let begin = Instant::now();
        let _bytes = send(&near, &[0; 80], SendFlags::empty())?;
        let _bytes = recv(&near, &mut bytes, RecvFlags::empty())?;
        spans.push(begin.elapsed());
    }
    drop(near);
    let _ended = echo.join();
    Ok(percentiles(spans))
}

/// Measures the time from the head of a queue until it has the lease of its slot, which was free.
fn head_to_lease(folder: &Path) -> BenchResult<(Duration, Duration)> {
    let mut spans = Vec::new();
    for service in 0..SERVICES {
        let folder = folder.join(service.to_string());
        let handle = node(&folder, SLOTS, SLOTS)?;
        let queues = (0..SLOTS).map(|pod| Queue::new(&folder, pod));
        let queues: Vec<Queue> = queues.collect::<BenchResult<_>>()?;
        for queue in &queues {
            std::thread::park_timeout(PAUSE);
            let begin = Instant::now();
            queue.head()?;
            let _epoch = queue.lease()?;
            spans.push(begin.elapsed());
        }
        handle.send(Command::Stop)?;
    }
    Ok(percentiles(spans))
}

/// Measures the time from the head of a queue until it has the lease, which another holds that has nothing to do: two round trips.
fn hand_over(folder: &Path) -> BenchResult<(Duration, Duration)> {
    let handle = node(folder, 1, 2)?;
    let queues = [Queue::new(folder, 0)?, Queue::new(folder, 1)?];
    queues[0].head()?;
    queues[0].idle(queues[0].lease()?)?;
    let mut spans = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        let (holder, next) = (&queues[round % 2], &queues[(round + 1) % 2]);
        std::thread::park_timeout(PAUSE);
        let begin = Instant::now();
        next.head()?;
        holder.give_back()?;
        let epoch = next.lease()?;
        spans.push(begin.elapsed());
        next.idle(epoch)?;
    }
    handle.send(Command::Stop)?;
    Ok(percentiles(spans))
}

/// Returns the used fraction of a core, and the requests a second.
fn many(folder: &Path) -> BenchResult<(f64, f64)> {
    let slots = 4;
    let handle = node(folder, slots, PODS)?;
    let queues = (0..PODS).map(|pod| Queue::new(folder, pod));
    let queues: Vec<Queue> = queues.collect::<BenchResult<_>>()?;
    let mut holders = vec![None; slots as usize];
    let before = handle.refresh().agent.service_cpu_ns;
    let begin = Instant::now();
    let (mut next, mut requests) = (0_u32, 0_u32);
    while begin.elapsed() < SPAN {
        let due = begin + Duration::from_secs(1) / RATE * requests;
        std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
        next = (next + 97) % PODS;
        let queue = &queues[next as usize];
        queue.head()?;
        if let Some(holder) = holders[(next % slots) as usize].replace(next) {
            queues[holder as usize].give_back()?;
        }
        queue.idle(queue.lease()?)?;
        requests += 1;
    }
    let used = handle.refresh().agent.service_cpu_ns - before;
    let cpu = Duration::from_nanos(used).as_secs_f64() / begin.elapsed().as_secs_f64();
    handle.send(Command::Stop)?;
    Ok((cpu, f64::from(requests) / begin.elapsed().as_secs_f64()))
}

fn main() -> BenchResult<()> {
    let folder = tempfile::Builder::new().prefix("weir-").tempdir()?;
    let part = |name: &str| -> BenchResult<std::path::PathBuf> {
        let part = folder.path().join(name);
        std::fs::create_dir_all(&part)?;
        Ok(part)
    };
    let (bare_p50, bare_p99) = ping_pong()?;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "bare round trip:     p50 {bare_p50:.1?}, p99 {bare_p99:.1?}"
    )?;
    for (name, (p50, p99)) in [
        ("head to lease:      ", head_to_lease(&part("free")?)?),
        ("hand-over of a lease:", hand_over(&part("two")?)?),
    ] {
        writeln!(
            out,
            "{name} p50 {p50:.1?} ({:.2} round trips), p99 {p99:.1?} ({:.2})",
            p50.as_secs_f64() / bare_p50.as_secs_f64(),
            p99.as_secs_f64() / bare_p99.as_secs_f64()
        )?;
    }
    let (cpu, rate) = many(&part("many")?)?;
    writeln!(
        out,
        "{PODS} queues, {rate:.0} requests/s: {:.1} % of a core",
        cpu * 100.0
    )?;
    Ok(())
}
