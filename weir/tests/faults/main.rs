//! Agent, pods and MPS daemon are killed and stopped at random while pods compute and one answers requests: invariants 1, 2, 5, 6
//! and 7 of ARCHITECTURE.md hold all the while, and shares are back within [`BACK`].
//!
//! | variable | meaning |
//! |---|---|
//! | `WEIR_FAULTS_SECONDS` | how long, in whole seconds; 20 |
//! | `WEIR_FAULTS_SEED` | repeats the faults of a run that has printed this seed |
//!
//! Ten minutes: `WEIR_FAULTS_SECONDS=600 cargo test --release -p weir --test faults -- --nocapture`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod checks;
mod pods;
mod requests;

#[path = "../cuda/build.rs"]
#[expect(dead_code, reason = "shared with the tests of the software GPU")]
mod build;
#[path = "../preload/node.rs"]
#[expect(dead_code, reason = "shared with the tests of the preload library")]
mod node;
#[path = "../cuda/place.rs"]
#[expect(dead_code, reason = "shared with the tests of the software GPU")]
mod place;
#[path = "../cuda/puppet.rs"]
#[expect(dead_code, reason = "shared with the tests of the software GPU")]
mod puppet;

use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{Timespec, poll};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};
use rustix::process::Signal;

use checks::Checks;
use node::Node;
use place::{Place, is_gone, signal, until};
use pods::{PODS, Pods};
use requests::Requests;

/// After a fault is mended, shares are as they were within this time.
const BACK: Duration = Duration::from_secs(1);
/// How long shares are measured then.
const MEASURED: Duration = Duration::from_millis(1_500);
/// So long pods are left without an agent: one that hangs is noticed after a second.
const ALONE: Duration = Duration::from_millis(1_600);
/// The agent needs no more memory than this, in KiB, nor more open files.
const AGENT_KIB_MAX: u64 = 128 << 10;
const AGENT_FILES_MAX: usize = 128;

/// What may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    AgentKilled,
    AgentHangs,
    PodKilled(usize),
    PodHangs(usize),
    MpsKilled,
    /// A process that is no pod's talks nonsense to each pod's socket.
    Flood,
}

/// A sequence of numbers that a seed names (`SplitMix64`).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn pod(&mut self) -> usize {
        usize::try_from(self.below(PODS.len() as u64)).unwrap()
    }

    /// A time to hang, or until somebody mends something.
    fn moment(&mut self, max_ms: u64) -> Duration {
        Duration::from_millis(20 + self.below(max_ms - 20))
    }

    /// The next faults: each kind once, in some order.
    fn round(&mut self) -> Vec<Fault> {
        let mut faults = vec![
            Fault::AgentKilled,
            Fault::PodKilled(self.pod()),
            Fault::MpsKilled,
            Fault::AgentHangs,
            Fault::PodHangs(self.pod()),
            Fault::Flood,
        ];
        for at in (1..faults.len()).rev() {
            let other = usize::try_from(self.below(at as u64 + 1)).unwrap();
            faults.swap(at, other);
        }
        faults
    }
}

fn pass(time: Duration) {
    let moment = Timespec::try_from(time).unwrap();
    poll(&mut [], Some(&moment)).unwrap();
}

/// A variable's number.
fn set(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text:?}: a whole number is needed")))
}

fn say(line: &str) {
    // Nobody to tell if this fails.
    let _written = writeln!(std::io::stderr(), "{line}");
}

#[test]
fn random_faults_leave_the_invariants_as_they_are() {
    #[expect(clippy::disallowed_methods, reason = "another seed each time")]
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = set("WEIR_FAULTS_SEED").unwrap_or_else(|| u64::from(clock.subsec_nanos()));
    let length = Duration::from_secs(set("WEIR_FAULTS_SECONDS").unwrap_or(20));
    say(&format!("WEIR_FAULTS_SEED={seed}"));
    let mut random = Random(seed);
    let config = format!(
        "[tokens]\nwindow = \"100ms\"\nhorizon = \"{}ms\"\n",
        checks::HORIZON / 1_000_000
    );
    let place = Place::new(&["--gpu", "H100", "--bytes", "64"]);
    let mut node = Node::new(place, &config);
    let mut pods = Pods::start(&node);
    let requests = Requests::start(pods.address());
    let mut checks = Checks::new();
    pods.mend(&node);
    pass(BACK);
    checks.governed();
    pass(MEASURED);
    checks.shares(&node, &pods, MEASURED);

    let begin = Instant::now();
    let mut count = 0;
    let mut faults = Vec::new();
    while begin.elapsed() < length {
        let fault = faults.pop().unwrap_or_else(|| {
            faults = random.round();
            faults.pop().unwrap()
        });
        say(&format!(
            "{:5.1} s: {fault:?}",
            begin.elapsed().as_secs_f64()
        ));
        happen(fault, &mut random, &mut node, &mut pods, &mut checks);
        pods.mend(&node);
        pass(BACK);
        checks.governed();
        pass(MEASURED);
        checks.shares(&node, &pods, MEASURED);
        checks.limits_and_sms(&node, &pods);
        agent_is_well(&node);
        count += 1;
    }
    let answers = requests.end();
    say(&format!(
        "{count} faults in {:.0} s; {answers}; agent: {} KiB, {} files",
        begin.elapsed().as_secs_f64(),
        memory(node.agent()),
        files(node.agent())
    ));
}

/// Lets a fault happen, and what a kubelet does then.
fn happen(
    fault: Fault,
    random: &mut Random,
    node: &mut Node,
    pods: &mut Pods,
    checks: &mut Checks,
) {
    match fault {
        Fault::AgentKilled => {
            checks.ungoverned();
            node.kill_agent();
            pass(ALONE);
            pods.live();
            checks.all_computed(node, pods, ALONE / 2);
            // Nobody sees what happens meanwhile.
            match random.below(3) {
                0 => pods.kill(random.pod(), checks),
                1 => kill_daemon(node, pods, checks),
                _ => {}
            }
            pass(random.moment(500));
            node.start();
        }
        Fault::AgentHangs => {
            checks.ungoverned();
            let agent = node.agent();
            signal(agent, Signal::STOP);
            pass(ALONE + random.moment(500));
            pods.live();
            // Who gives its token back, or has given it back, waits for a second until it knows that nobody answers.
            checks.all_computed(node, pods, ALONE * 7 / 8);
            signal(agent, Signal::CONT);
            pods.pay(node);
        }
        Fault::PodKilled(pod) => {
            pods.kill(pod, checks);
            pass(random.moment(300));
        }
        Fault::PodHangs(pod) => {
            let pid = pods.pid(pod);
            signal(pid, Signal::STOP);
            pass(random.moment(1_500));
            signal(pid, Signal::CONT);
        }
        Fault::MpsKilled => {
            kill_daemon(node, pods, checks);
            pass(random.moment(300));
        }
        Fault::Flood => {
            for pod in PODS {
                flood(node, pod.name, random);
            }
        }
    }
}

/// The MPS daemon dies, and the device is lost to all of its clients.
fn kill_daemon(node: &Node, pods: &Pods, checks: &mut Checks) {
    let daemon = daemon(node);
    pods.lose_all(checks);
    signal(daemon, Signal::KILL);
    until("the daemon is dead", || is_gone(daemon));
}

/// The process of the slot's MPS daemon.
fn daemon(node: &Node) -> u32 {
    let slots = fs::read_dir(node.file("run/mps")).unwrap();
    let files = slots.map(|slot| {
        slot.unwrap()
            .path()
            .join("pipe/nvidia-cuda-mps-control.pid")
    });
    let pids = files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    pids.last().unwrap()
}

/// Messages of all lengths, until the agent has had enough.
fn flood(node: &Node, pod: &str, random: &mut Random) {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let address = SocketAddrUnix::new(node.gate(pod).join("gpu.sock")).unwrap();
    if connect(&socket, &address).is_err() {
        return;
    }
    for _ in 0..1_000 {
        let length = usize::try_from(1 + random.below(4_096)).unwrap();
        let bytes: Vec<u8> = (0..length)
            .map(|_| u8::try_from(random.below(256)).unwrap())
            .collect();
        if send(&socket, &bytes, SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.unwrap().parse().unwrap()
}

fn files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Invariant 7.
fn agent_is_well(node: &Node) {
    let log = node.log();
    assert!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
    let (memory, files) = (memory(node.agent()), files(node.agent()));
    assert!(memory <= AGENT_KIB_MAX, "the agent has {memory} KiB");
    assert!(files <= AGENT_FILES_MAX, "the agent has {files} files");
}
