use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use peers::api::Fault;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use testing::Random;
use tests::control::{Cluster, Control, DataPod, Path, resource};
use tests::{PATIENCE, SLACK, eventually};
use tokio::time::Instant;

use super::{BINARY, cluster};

/// Environment variable with the run time in seconds.
const SECONDS: &str = "WEIR_CHAOS_SECONDS";
/// Environment variable with a seed, to repeat a run as far as its random choices go.
const SEED: &str = "WEIR_CHAOS_SEED";
/// Longest time for which the path of a revision may be empty.
const EMPTY_MAX: Duration = Duration::from_secs(10);

/// Returns true once in `count` times, in the mean.
fn is_one_in(random: &mut Random, count: u64) -> bool {
    random.below(count) == 0
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Measures for how long paths are empty: a path with dead pods only counts as empty.
struct Observer {
    names: Vec<String>,
    empty_since: BTreeMap<String, Instant>,
    longest: Duration,
}

impl Observer {
    fn look(&mut self, cluster: &Cluster, pods: &[DataPod]) {
        for name in &self.names {
            let is_served = match cluster.path(name) {
                Path::Knatives => true,
                Path::Empty => false,
                Path::Own(ips) => {
                    let is_alive = |ip| pods.iter().any(|pod| pod.ip == ip && pod.is_alive());
                    ips.into_iter().any(is_alive)
                }
            };
            if is_served {
                self.empty_since.remove(name);
                continue;
            }
            let since = *self
                .empty_since
                .entry(name.clone())
                .or_insert_with(Instant::now);
            self.longest = self.longest.max(since.elapsed());
        }
    }
}

/// Checks the paths every 10 ms for `time`.
async fn observe(observer: &mut Observer, cluster: &Cluster, pods: &[DataPod], time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        observer.look(cluster, pods);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn the_path_is_always_knatives_or_weirs_whatever_ends_or_fails() {
    let seconds = variable(SECONDS).unwrap_or(45);
    let seed = variable(SEED).unwrap_or_else(|| std::process::id().into());
    let mut random = Random(seed);
    let cluster = cluster().await;
    let names: Vec<_> = (0..8).map(|number| format!("f{number}")).collect();
    for name in &names {
        cluster.add_revision(name, true);
    }
    let mut pods = vec![
        cluster.add_pod("data-0").await,
        cluster.add_pod("data-1").await,
    ];
    let mut next_pod = 2;
    let conflicts = Arc::new(AtomicU64::new(0));
    let chance = Arc::new(Mutex::new(Random(seed ^ 1)));
    let counted = Arc::clone(&conflicts);
    cluster.api.set_faults(move |_| {
        let mut chance = chance.lock().unwrap();
        let number = counted.fetch_add(1, Ordering::Relaxed);
        match chance.below(20) {
            0 => Fault::CutBefore,
            1 => Fault::CutAfter,
            _ if number % 3 == 2 => Fault::Conflict,
            _ => Fault::None,
        }
    });
    let start = |cluster: &Cluster, number: u32| {
        cluster.control_with_short_terms(BINARY, &format!("weir-control-{number}"))
    };
    let mut controls: Vec<Control> = (0..2).map(|number| start(&cluster, number)).collect();
    let mut next_control = 2;
    let mut observer = Observer {
        names: names.clone(),
        empty_since: BTreeMap::new(),
        longest: Duration::ZERO,
    };
    let mut opted_out = BTreeSet::new();
    let mut kills = 0;
    let mut killed_at = Instant::now();
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        let pause = Duration::from_millis(50 + random.below(600));
        observe(&mut observer, &cluster, &pods, pause).await;
        let longest = observer.longest;
        assert!(
            longest < EMPTY_MAX + SLACK,
            "a path was empty for {longest:?}, seed {seed}"
        );
        for control in &mut controls {
            if control.has_ended() {
                *control = start(&cluster, next_control);
                next_control += 1;
            }
        }
        let name = &names[usize::try_from(random.below(8)).unwrap()];
        match random.below(9) {
            0 if opted_out.remove(name) => cluster.opt(name, true),
            0 => {
                opted_out.insert(name.clone());
                cluster.opt(name, false);
            }
            // Kills one or both, and starts another; not faster than leaders can follow each other.
            1 | 2 if killed_at.elapsed() > Duration::from_secs(4) => {
                killed_at = Instant::now();
                let is_both = is_one_in(&mut random, 2);
                for control in &mut controls {
                    if is_both || cluster.leader().as_deref() == Some(&control.name) {
                        control.kill();
                        kills += 1;
                        *control = start(&cluster, next_control);
                        next_control += 1;
                    }
                }
            }
            3 => cluster.api.compact(),
            4 => cluster.api.end_watches(),
            // A pod is replaced: it terminates or dies.
            5 if pods.len() > 1 => {
                let pod = pods.remove(0);
                if is_one_in(&mut random, 2) {
                    pod.die();
                    observe(&mut observer, &cluster, &pods, Duration::from_millis(500)).await;
                }
                cluster.delete_pod(&pod);
            }
            5 | 6 if pods.len() < 3 => {
                pods.push(cluster.add_pod(&format!("data-{next_pod}")).await);
                next_pod += 1;
            }
            7 => {
                // Knative writes its Endpoints as it scales.
                let ip = format!("198.51.100.{}", 1 + random.below(200));
                cluster.change("endpoints", "default", name, |endpoints| {
                    endpoints["subsets"][0]["addresses"] = json!([{"ip": ip}]);
                });
            }
            _ => {
                let is_ready = is_one_in(&mut random, 2);
                cluster.set_pod(&pods[0], is_ready || pods.len() == 1);
            }
        }
    }
    cluster.api.clear_faults();
    for pod in &pods {
        cluster.set_pod(pod, true);
    }
    let is_right = || {
        names.iter().all(|name| match cluster.path(name) {
            Path::Own(ips) => {
                !opted_out.contains(name)
                    && ips.iter().all(|ip| pods.iter().any(|pod| pod.ip == *ip))
            }
            Path::Knatives => opted_out.contains(name),
            Path::Empty => false,
        })
    };
    eventually("the final state is correct", is_right).await;
    let longest = observer.longest;
    let writes = conflicts.load(Ordering::Relaxed);
    assert!(
        kills > 0 && writes > 50,
        "{kills} processes were killed at {writes} writes: too few"
    );
    assert!(
        longest < EMPTY_MAX + SLACK,
        "a path was empty for {longest:?}, seed {seed}"
    );
}

/// Kills the leader at its n-th write, before or after its effect, and starts another one.
#[tokio::test]
async fn a_process_killed_at_any_step_leaves_a_path_and_the_next_one_continues() {
    for fault in [Fault::CutBefore, Fault::CutAfter] {
        // Two writes attach, two detach; one is the Lease's, and the others are events.
        for step in 0..6 {
            killed_at(step, fault).await;
        }
    }
}

async fn killed_at(step: u64, fault: Fault) {
    let cluster = cluster().await;
    let pods = [cluster.add_pod("data-0").await];
    cluster.add_revision("f", true);
    let mut observer = Observer {
        names: vec!["f".to_owned()],
        empty_since: BTreeMap::new(),
        longest: Duration::ZERO,
    };
    let victim: Arc<Mutex<Option<Pid>>> = Arc::default();
    let is_killed = Arc::new(AtomicBool::new(false));
    let (own, killed) = (Arc::clone(&victim), Arc::clone(&is_killed));
    let mut steps = 0;
    cluster.api.set_faults(move |line| {
        // Renewals happen at any time.
        if line.contains("leases") || line.contains("events") || killed.load(Ordering::Relaxed) {
            return Fault::None;
        }
        steps += 1;
        if steps <= step {
            return Fault::None;
        }
        if let Some(pid) = *own.lock().unwrap() {
            let _sent = kill_process(pid, Signal::KILL);
        }
        killed.store(true, Ordering::Relaxed);
        fault
    });
    let mut control = cluster.control_with_short_terms(BINARY, "weir-control-0");
    *victim.lock().unwrap() = control.pid();
    let mut number = 0;
    for (wanted, is_opted_in) in [(Path::Own(vec![pods[0].ip]), true), (Path::Knatives, false)] {
        cluster.opt("f", is_opted_in);
        let begin = Instant::now();
        let is_done = || {
            let slice = cluster
                .api
                .get(&resource("endpointslices"), "default", "f-weir");
            cluster.path("f") == wanted && slice.is_some() == is_opted_in
        };
        while !is_done() {
            observe(&mut observer, &cluster, &pods, Duration::from_millis(20)).await;
            // As the kubelet restarts it. A process that was without CPU for its term ends by itself, and the fault is left for
            // the next one.
            if control.has_ended() {
                number += 1;
                control =
                    cluster.control_with_short_terms(BINARY, &format!("weir-control-{number}"));
                *victim.lock().unwrap() = control.pid();
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "not {wanted:?}, killed at step {step}: {}",
                control.log()
            );
        }
    }
    let longest = observer.longest;
    assert!(
        longest < EMPTY_MAX,
        "the path was empty for {longest:?}, killed at step {step}"
    );
    assert!(is_killed.load(Ordering::Relaxed), "no step {step}");
}
