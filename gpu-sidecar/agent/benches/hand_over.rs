//! Latency of handing over a token, as a multiple of a bare round trip over a Unix socket in the same run, and CPU time of the
//! service with 200 pods and a thousand token renewals per second.
//!
//! `cargo bench -p gpu-sidecar`

use annotations::{Evict, Isolation};
use std::io::{IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agent_pages::{View, open_facts, open_orders};
use gpu_sidecar::config::TokenSettings;
use gpu_sidecar::events::Events;
use gpu_sidecar::service;
use gpu_sidecar::state::{
    Command, DeviceMemory, Pod, PodKey, PodSettings, ServiceHandle, ServiceSettings, Slot, SlotKey,
    SlotKind,
};
use protocol::message::{FromProcess, MESSAGE_MAX};
use protocol::page::{Facts, Orders};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, bind, connect, listen, recv, recvmsg, send, socket_with, socketpair,
};
use rustix::thread::futex;

type BenchResult<T> = Result<T, Box<dyn std::error::Error>>;

const ROUNDS: usize = 5_000;
const PODS: u32 = 200;
const SPAN: Duration = Duration::from_secs(5);

fn seqpacket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Starts a service with one slot and `pods` pods on it.
fn node(
    folder: &Path,
    settings: TokenSettings,
    pods: u32,
    sm_hundredths: u32,
) -> BenchResult<ServiceHandle> {
    let handle = service::start(ServiceSettings {
        tokens: settings,
        memory: agent_core::MemorySettings::default(),
        events: Arc::new(Events::default()),
        device_memory: Arc::new(DeviceMemory::default()),
        record: None,
    })?;
    handle.send(Command::SlotAdded(Arc::new(Slot {
        key: SlotKey(0),
        name: "0".to_owned(),
        uuid: "GPU-00000000-0000-0000-0000-000000000000".to_owned(),
        product: "bench".to_owned(),
        kind: SlotKind::Mps,
        sms: None,
        memory_bytes: 80 << 30,
        compute_capability: Some((9, 0)),
        client_limit: 1_000,
        seats: 1_000,
        context_residue: None,
        host_path: 0,
        numa_nodes: Vec::new(),
        models_memory: None,
        mps_pipe: None,
        mig: None,
    })))?;
    handle.send(Command::MpsState {
        slot: SlotKey(0),
        is_up: true,
        text: String::new(),
    })?;
    for key in 0..pods {
        let own = folder.join(key.to_string());
        std::fs::create_dir_all(&own)?;
        let listener = seqpacket()?;
        rustix::io::ioctl_fionbio(&listener, true)?;
        bind(&listener, &SocketAddrUnix::new(own.join("gpu.sock"))?)?;
        listen(&listener, 8)?;
        let pod = Pod {
            key: PodKey(key),
            serial: u64::from(key) + 1,
            name: key.to_string(),
            namespace: "bench".to_owned(),
            function: "bench".to_owned(),
            revision: "bench".to_owned(),
            uid: None,
            cgroup: None,
            pod_name: None,
            mps_mount: None,
            settings: PodSettings {
                isolation: Isolation::Shared,
                sm_hundredths,
                quota_request_ppm: 1_000_000 / pods,
                // With a limit of 100 % no token would ever be renewed.
                quota_limit_ppm: 900_000,
                gpu_memory: None,
                evict: Evict::Host,
                slo: None,
                is_pipeline: false,
                slo_percentile_ppm: 980_000,
                version: String::new(),
            },
            slot: SlotKey(0),
            folder: own,
        };
        handle.send(Command::PodAdded {
            queue: None,
            pod: Arc::new(pod),
            listener,
        })?;
    }
    Ok(handle)
}

struct Client {
    connection: OwnedFd,
    orders: View<Orders>,
    facts: View<Facts>,
}

impl Client {
    fn new(folder: &Path, pod: u32) -> BenchResult<Self> {
        let connection = seqpacket()?;
        connect(
            &connection,
            &SocketAddrUnix::new(folder.join(pod.to_string()).join("gpu.sock"))?,
        )?;
        let send_message =
            |message: &FromProcess| send(&connection, message.write().finish(), SendFlags::empty());
        let _bytes = send_message(&FromProcess::Hello {
            version: protocol::VERSION,
            residency: protocol::page::Residency::None,
            host_bytes: 0,
            pinned_bytes: 0,
            pid: 1,
            again: false,
            open: false,
            busy_ns: 0,
            ungated_ns: 0,
            bytes_used: 0,
            program: "bench".to_owned(),
        })?;
        let mut bytes = [0; MESSAGE_MAX];
        let _welcome = recv(&connection, &mut bytes, RecvFlags::empty())?;
        let _bytes = send_message(&FromProcess::Attach {
            uuid: [0; 16],
            multiprocessors: 1,
            mps: true,
            context_bytes: 0,
            busy_ns: 0,
        })?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let _pages = recvmsg(
            &connection,
            &mut parts,
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                files.extend(rights);
            }
        }
        let [orders, facts] = files.as_slice() else {
            return Err("no pages".into());
        };
        Ok(Self {
            orders: open_orders(orders.as_fd())?,
            facts: open_facts(facts.as_fd())?,
            connection,
        })
    }

    fn send(&self, message: &FromProcess) -> BenchResult<()> {
        let _bytes = send(
            &self.connection,
            message.write().finish(),
            SendFlags::empty(),
        )?;
        Ok(())
    }

    fn request_token(&self) -> BenchResult<()> {
        let epoch = self.orders.gate.epoch();
        self.send(&FromProcess::Ask { epoch })
    }

    fn wait_open(&self) {
        while !self.orders.gate.is_open() {
            let word = self.orders.gate.word();
            let epoch = word.load(Ordering::Acquire);
            if epoch & 1 == 1 {
                let _woken = futex::wait(word, futex::Flags::empty(), epoch, None);
            }
        }
    }
}

fn percentiles(mut spans: Vec<Duration>) -> (Duration, Duration) {
    spans.sort_unstable();
    let at = |part: usize| {
        spans
            .get(spans.len() * part / 100)
            .copied()
            .unwrap_or_default()
    };
    (at(50), at(99))
}

fn ping_pong() -> BenchResult<(Duration, Duration)> {
    let (near, far) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let echo = std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok((read, _)) = recv(&far, &mut bytes, RecvFlags::empty()) {
            if read == 0 || send(&far, &bytes[..read], SendFlags::empty()).is_err() {
                return;
            }
        }
    });
    let mut spans = Vec::with_capacity(ROUNDS);
    let mut bytes = [0; 64];
    for _round in 0..ROUNDS {
        let begin = Instant::now();
        let _bytes = send(&near, &[0; 12], SendFlags::empty())?;
        let _bytes = recv(&near, &mut bytes, RecvFlags::empty())?;
        spans.push(begin.elapsed());
    }
    drop(near);
    let _ended = echo.join();
    Ok(percentiles(spans))
}

/// Measures the time from the return of a token by one process until another process observes its open gate: a message, a
/// decision and a futex. Returns p50 and p99.
fn hand_over(folder: &Path) -> BenchResult<(Duration, Duration)> {
    let handle = node(folder, TokenSettings::default(), 2, 10_000)?;
    let clients = [Client::new(folder, 0)?, Client::new(folder, 1)?];
    let clients = Arc::new(clients);
    clients[0].request_token()?;
    clients[0].wait_open();
    let mut spans = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        let (holder, next) = (round % 2, (round + 1) % 2);
        clients[next].request_token()?;
        let both = Arc::clone(&clients);
        let waiter = std::thread::spawn(move || {
            both[next].wait_open();
            Instant::now()
        });
        // By then the thread waiter in the kernel.
        let until = Instant::now() + Duration::from_micros(300);
        while Instant::now() < until {
            std::thread::yield_now();
        }
        let epoch = clients[holder].orders.gate.epoch();
        let begin = Instant::now();
        clients[holder].send(&FromProcess::Closed { epoch: epoch & !1 })?;
        let opened = waiter
            .join()
            .map_err(|_| "the waiting thread has panicked")?;
        spans.push(opened.saturating_duration_since(begin));
    }
    handle.send(Command::Stop)?;
    Ok(percentiles(spans))
}

/// Returns the used fraction of a core, and renewals per second.
fn many(folder: &Path) -> BenchResult<(f64, f64)> {
    let settings = TokenSettings {
        slice_max: Duration::from_millis(200),
        ..TokenSettings::default()
    };
    let handle = node(folder, settings, PODS, 10_000 / PODS)?;
    let clients: Vec<_> = (0..PODS)
        .map(|pod| Client::new(folder, pod))
        .collect::<BenchResult<_>>()?;
    for client in &clients {
        client.request_token()?;
        client.wait_open();
    }
    let done = AtomicBool::new(false);
    let (mut cpu, mut renewals) = (0.0, 0_u64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for client in &clients {
                    client.facts.launches.0.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::park_timeout(Duration::from_millis(20));
            }
        });
        let until: Vec<_> = clients
            .iter()
            .map(|client| client.orders.open_until.load(Ordering::Relaxed))
            .collect();
        let mut last = until;
        let before = handle.refresh().agent.service_cpu_ns;
        let begin = Instant::now();
        while begin.elapsed() < SPAN {
            std::thread::park_timeout(Duration::from_millis(50));
            for (client, last) in clients.iter().zip(&mut last) {
                let now = client.orders.open_until.load(Ordering::Relaxed);
                renewals += u64::from(now != *last);
                *last = now;
            }
        }
        let used = handle.refresh().agent.service_cpu_ns - before;
        cpu = Duration::from_nanos(used).as_secs_f64() / begin.elapsed().as_secs_f64();
        done.store(true, Ordering::Relaxed);
    });
    handle.send(Command::Stop)?;
    #[expect(clippy::cast_precision_loss, reason = "some thousands")]
    let rate = renewals as f64 / SPAN.as_secs_f64();
    Ok((cpu, rate))
}

fn main() -> BenchResult<()> {
    let folder = tempfile::tempdir()?;
    let bare = ping_pong()?;
    let handed_over = hand_over(&folder.path().join("two"))?;
    let (cpu, rate) = many(&folder.path().join("many"))?;
    let times = |own: Duration, bare: Duration| own.as_secs_f64() / bare.as_secs_f64();
    let mut out = std::io::stdout();
    writeln!(out, "bare round trip:  p50 {:?}, p99 {:?}", bare.0, bare.1)?;
    writeln!(
        out,
        "token hand-over:  p50 {:?} ({:.2} x), p99 {:?} ({:.2} x)",
        handed_over.0,
        times(handed_over.0, bare.0),
        handed_over.1,
        times(handed_over.1, bare.1)
    )?;
    writeln!(
        out,
        "{PODS} pods, {rate:.0} renewals per second: {:.2} % of a core",
        cpu * 100.0
    )?;
    Ok(())
}
