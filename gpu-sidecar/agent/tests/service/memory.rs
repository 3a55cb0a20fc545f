//! Sharing of a pod's memory limit among its processes.

use std::sync::atomic::Ordering;

use protocol::message::{FromAgent, FromProcess};

use crate::node::Node;
use crate::puppet::Puppet;
use testing::until;

fn claim(puppet: &Puppet, seq: u32, bytes: u64) -> u64 {
    puppet.send(&FromProcess::Claim { seq, bytes });
    answered(puppet, seq)
}

fn answered(puppet: &Puppet, seq: u32) -> u64 {
    until("an answer", || {
        let orders = puppet.orders();
        (orders.claim_answered.load(Ordering::Acquire) == seq)
            .then(|| orders.memory_claim.load(Ordering::Acquire))
    })
}

#[test]
fn the_sum_of_claims_stays_within_the_limit() {
    let node = Node::new();
    let pod = node.pod_with(0, |settings| settings.gpu_memory = Some(100));
    let other = node.child_process(&pod);
    let (first, second) = (other.connect().greet_and_attach(), node.attached(&pod));
    assert_eq!(first.orders().memory_limit.load(Ordering::Acquire), 100);
    assert_eq!(claim(&first, 1, 60), 60);
    assert_eq!(claim(&second, 1, 40), 40);
    for (seq, lie) in [(2, 101), (3, u64::MAX), (4, u64::MAX - 39)] {
        assert_eq!(claim(&second, seq, lie), 40);
    }
    // The other process is asked and does not respond: the claim is refused.
    assert_eq!(claim(&second, 5, 41), 40);
    assert_eq!(first.answer(), FromAgent::Relinquish);
    // It is asked and relinquishes memory.
    second.send(&FromProcess::Claim { seq: 6, bytes: 70 });
    assert_eq!(first.answer(), FromAgent::Relinquish);
    first.facts().bytes_used.store(30, Ordering::Release);
    assert_eq!(claim(&first, 2, 30), 30);
    assert_eq!(answered(&second, 6), 70);
    assert_eq!(second.orders().memory_others.load(Ordering::Acquire), 30);
    // It is asked and dies.
    second.send(&FromProcess::Claim { seq: 7, bytes: 100 });
    assert_eq!(first.answer(), FromAgent::Relinquish);
    other.kill();
    drop(first);
    assert_eq!(answered(&second, 7), 100);
}

/// The memory of the other processes is published, also once it is zero.
#[test]
fn the_memory_of_other_processes_is_published() {
    let node = Node::new();
    let pod = node.pod_with(0, |settings| settings.gpu_memory = Some(100));
    let other = node.child_process(&pod);
    let (first, second) = (other.connect().greet_and_attach(), node.attached(&pod));
    first.facts().bytes_used.store(30, Ordering::Release);
    second.facts().bytes_used.store(12, Ordering::Release);
    let others = |puppet: &Puppet, bytes| {
        until("the memory of others", || {
            let _figures = node.figures();
            (puppet.orders().memory_others.load(Ordering::Acquire) == bytes).then_some(())
        });
    };
    others(&second, 30);
    others(&first, 12);
    // An answer to a claim publishes it at once.
    for seq in 1..=20 {
        let bytes = u64::from(seq) + 30;
        first.facts().bytes_used.store(bytes, Ordering::Release);
        claim(&second, seq, 12);
        assert_eq!(second.orders().memory_others.load(Ordering::Acquire), bytes);
    }
    first.facts().bytes_used.store(30, Ordering::Release);
    assert_eq!(node.of_pod(&pod).memory_used, 42);
    other.kill();
    drop(first);
    others(&second, 0);
}

#[test]
fn a_raised_limit_admits_larger_claims() {
    let node = Node::new();
    let pod = node.pod_with(0, |settings| settings.gpu_memory = Some(100));
    let puppet = node.attached(&pod);
    assert_eq!(claim(&puppet, 1, 101), 0);
    node.change(&pod, |settings| settings.gpu_memory = Some(200));
    until("the limit", || {
        (puppet.orders().memory_limit.load(Ordering::Acquire) == 200).then_some(())
    });
    assert_eq!(claim(&puppet, 2, 101), 101);
    node.change(&pod, |settings| settings.gpu_memory = None);
    until("no limit", || {
        (puppet.orders().memory_limit.load(Ordering::Acquire) == 0).then_some(())
    });
    assert_eq!(claim(&puppet, 3, u64::MAX), u64::MAX);
}
