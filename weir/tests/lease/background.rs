//! Work on a slot that no request has caused: health checks which compute, loads and warm-ups of models, messages on upgraded connections.

use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use softgpu_harness::node::Node;
use softgpu_harness::pods::{About, Pod, exchange_within, infer, while_busy};
use softgpu_harness::soft_gpu_dir::SoftGpuDir;

use super::{CONFIG, node, print, restores};

/// The kubelet's defaults: time and number of failures after which a container is started again, and interval of its checks.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
const FAILURES: usize = 3;
const PROBE_PERIOD: Duration = Duration::from_secs(1);

/// Returns the number of evictions through which the health check is tried: few in a run of all tests.
fn evictions() -> u64 {
    let variable = std::env::var("WEIR_EVICTIONS");
    variable.map_or(100, |text| text.parse().unwrap())
}

/// Results of one health check a period while its pod's model leaves and returns all the time.
#[derive(Debug, Default)]
struct Checks {
    count: usize,
    failed: usize,
    /// Failures in a row, now and at most.
    row: usize,
    longest_row: usize,
    slowest: Duration,
}

impl Checks {
    fn check(&mut self, address: SocketAddr) {
        let begin = Instant::now();
        let (status, _) = exchange_within(address, PROBE_TIMEOUT, "GET", "/health?gpu=1", "");
        self.count += 1;
        self.slowest = self.slowest.max(begin.elapsed());
        self.row = if status == 200 { 0 } else { self.row + 1 };
        self.failed += usize::from(status != 200);
        self.longest_row = self.longest_row.max(self.row);
    }
}

#[test]
fn a_server_whose_health_check_computes_keeps_its_pod_while_its_model_leaves_all_the_time() {
    let (node, pods) = node();
    let target = pods[0].target;
    let before = restores(&node, &pods);
    let checks = thread::scope(|scope| {
        // Dropped at the end, also of a test that fails.
        let (guard, ends) = mpsc::sync_channel::<()>(0);
        let checking = scope.spawn(move || {
            let mut checks = Checks::default();
            loop {
                let next = Instant::now() + PROBE_PERIOD;
                checks.check(target);
                let left = next.saturating_duration_since(Instant::now());
                if ends.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
                    return checks;
                }
            }
        });
        let mut seed = 0;
        while restores(&node, &pods) - before < evictions() {
            for pod in &pods {
                assert_eq!(infer(pod.address(), seed), 200, "request {seed}");
            }
            seed += 1;
        }
        drop(guard);
        checking.join().unwrap()
    });
    let evictions = restores(&node, &pods) - before;
    print(&format!("{evictions} evictions: {checks:?}"));
    assert!(
        checks.count > 1 && checks.longest_row < FAILURES,
        "{checks:?}"
    );
}

#[test]
fn a_model_is_loaded_and_computes_for_no_request_on_a_slot_that_is_busy_all_the_time() {
    let softgpu = SoftGpuDir::new(&["--gpu", "V100", "--bytes", "64"]);
    let node = Node::new(softgpu, CONFIG);
    let busy = Pod::start(&node, About::of("one", "127.0.11.21"));
    let address = busy.address();
    let ((loaded, worked), answered) = while_busy(address, || {
        let begin = Instant::now();
        let pod = Pod::start(&node, About::of("two", "127.0.11.22"));
        let loaded = begin.elapsed();
        // As for a message on an upgraded connection: past the queue-proxy.
        let begin = Instant::now();
        assert_eq!(infer(pod.target, 7), 200);
        (loaded, begin.elapsed())
    });
    print(&format!(
        "loaded after {loaded:?}, computed within {worked:?}, beside {answered} requests"
    ));
    assert!(loaded < Duration::from_secs(20) && worked < Duration::from_secs(20));
}
