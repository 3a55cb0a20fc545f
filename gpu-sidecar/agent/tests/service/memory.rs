//! How the processes of a pod share its memory.

use std::sync::atomic::Ordering;

use protocol::message::{FromAgent, FromProcess};

use crate::node::{Node, until};
use crate::puppet::Puppet;

fn claim(puppet: &Puppet, seq: u32, bytes: u64) -> u64 {
    puppet.say(&FromProcess::Claim { seq, bytes });
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
fn claims_together_stay_within_the_limit() {
    let node = Node::new();
    let pod = node.pod_with(0, |settings| settings.gpu_memory = Some(100));
    let other = node.other(&pod);
    let (first, second) = (other.connect().begin(), node.begun(&pod));
    assert_eq!(first.orders().memory_limit.load(Ordering::Acquire), 100);
    assert_eq!(claim(&first, 1, 60), 60);
    assert_eq!(claim(&second, 1, 40), 40);
    for (seq, lie) in [(2, 101), (3, u64::MAX), (4, u64::MAX - 39)] {
        assert_eq!(claim(&second, seq, lie), 40);
    }
    // The other is asked, says nothing, and the answer is no.
    assert_eq!(claim(&second, 5, 41), 40);
    assert_eq!(first.answer(), FromAgent::Relinquish);
    // It is asked and gives back.
    second.say(&FromProcess::Claim { seq: 6, bytes: 70 });
    assert_eq!(first.answer(), FromAgent::Relinquish);
    first.facts().bytes_used.store(30, Ordering::Release);
    assert_eq!(claim(&first, 2, 30), 30);
    assert_eq!(answered(&second, 6), 70);
    assert_eq!(second.orders().memory_others.load(Ordering::Acquire), 30);
    // It is asked and dies.
    second.say(&FromProcess::Claim { seq: 7, bytes: 100 });
    assert_eq!(first.answer(), FromAgent::Relinquish);
    other.kill();
    drop(first);
    assert_eq!(answered(&second, 7), 100);
}

/// What the others hold is told, also once they hold nothing.
#[test]
fn what_others_hold_is_told() {
    let node = Node::new();
    let pod = node.pod_with(0, |settings| settings.gpu_memory = Some(100));
    let other = node.other(&pod);
    let (first, second) = (other.connect().begin(), node.begun(&pod));
    first.facts().bytes_used.store(30, Ordering::Release);
    second.facts().bytes_used.store(12, Ordering::Release);
    let others = |puppet: &Puppet, bytes| {
        until("what others hold", || {
            let _figures = node.figures();
            (puppet.orders().memory_others.load(Ordering::Acquire) == bytes).then_some(())
        });
    };
    others(&second, 30);
    others(&first, 12);
    // Who asks is told at once.
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
fn a_limit_that_is_raised_answers_who_waits_or_asks() {
    let node = Node::new();
    let pod = node.pod_with(0, |settings| settings.gpu_memory = Some(100));
    let puppet = node.begun(&pod);
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
