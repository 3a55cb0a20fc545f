//! Leases of a slot on which several pods compute at once: they decide whose model is in its memory.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use softgpu_harness::node::Node;
use softgpu_harness::pods::{About, Pod, StopGuard, infer};
use softgpu_harness::soft_gpu_dir::SoftGpuDir;
use testing::until;

use super::{print, restores};

/// A shared slot with room for two of the models, which take 4 MiB each.
const TWO: &str = "[slots]\nkind = \"mps\"\nmemory = \"9Mi\"\n\
                   [slots.context-residue]\nmps = \"5Mi\"\n";
/// The same with room for one.
const ONE: &str = "[slots]\nkind = \"mps\"\nmemory = \"5Mi\"\n\
                   [slots.context-residue]\nmps = \"5Mi\"\n";

fn start(config: &str, pods: &[(&'static str, &'static str)]) -> (Node, Vec<Pod>) {
    let softgpu = SoftGpuDir::new(&["--gpu", "V100", "--bytes", "64"]);
    let node = Node::new(softgpu, config);
    let pods = pods.iter().map(|(name, ip)| {
        let about = About {
            is_shared: true,
            ..About::of(name, ip)
        };
        Pod::start(&node, about)
    });
    let pods = pods.collect();
    (node, pods)
}

fn holds(node: &Node, pod: &Pod) -> bool {
    node.instance(pod.about.name)["lease"]["holder"] == true
}

#[test]
fn two_models_take_turns_in_the_memory_of_a_shared_slot() {
    let (node, pods) = start(ONE, &[("one", "127.0.11.40"), ("two", "127.0.11.41")]);
    let before = restores(&node, &pods);
    for seed in 0..6 {
        for pod in &pods {
            assert_eq!(infer(pod.address(), seed), 200, "{}", pod.about.name);
            assert!(holds(&node, pod));
        }
    }
    let moved = restores(&node, &pods) - before;
    assert!(moved >= 10, "{moved} restores for 12 requests in turn");
    assert!(!holds(&node, &pods[0]) && holds(&node, &pods[1]));
}

#[test]
fn models_that_fit_hold_leases_together_and_a_third_comes_and_goes() {
    const REQUESTS: u64 = 40;
    let addresses = [
        ("a", "127.0.11.42"),
        ("b", "127.0.11.43"),
        ("c", "127.0.11.44"),
    ];
    let (node, pods) = start(TWO, &addresses);
    // The third has just loaded its model, and keeps it for the rest of its turn.
    until("the two that are used are in memory", || {
        for pod in &pods[..2] {
            assert_eq!(infer(pod.address(), 1), 200);
        }
        pods[..2].iter().all(|pod| holds(&node, pod))
    });
    assert!(!holds(&node, &pods[2]));
    let before = restores(&node, &pods);
    for seed in 0..20 {
        for pod in &pods[..2] {
            assert_eq!(infer(pod.address(), seed), 200);
        }
    }
    assert_eq!(restores(&node, &pods), before, "those two have room");
    // A steady stream to two of them, and the third is served in between.
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let _guard = StopGuard(&stop);
        for pod in &pods[..2] {
            let (stop, answered) = (&stop, &answered);
            scope.spawn(move || {
                for seed in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    assert_eq!(infer(pod.address(), seed), 200, "{}", pod.about.name);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for seed in 0..REQUESTS {
            assert_eq!(infer(pods[2].address(), seed), 200);
        }
    });
    let moved = restores(&node, &pods) - before;
    let answered = answered.load(Ordering::Relaxed);
    print(&format!(
        "{answered} requests to two pods beside {REQUESTS} to a third, {moved} restores"
    ));
    assert!(moved > 0 && answered > 0);
}

#[test]
fn requests_survive_an_agent_that_is_killed() {
    let (mut node, pods) = start(ONE, &[("one", "127.0.11.45"), ("two", "127.0.11.46")]);
    for pod in &pods {
        assert_eq!(infer(pod.address(), 1), 200);
    }
    node.kill_agent();
    // The one with the lease computes without an agent.
    assert_eq!(infer(pods[1].address(), 2), 200);
    node.start();
    for seed in 3..6 {
        for pod in &pods {
            assert_eq!(infer(pod.address(), seed), 200, "{}", pod.about.name);
        }
    }
}
