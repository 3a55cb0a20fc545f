//! Forty processes of ten pods that do anything in any order, against a naive model: the SMs of those whose gate was seen open
//! and that have not said that it is shut.

use std::sync::atomic::Ordering;
use std::time::Instant;

use protocol::message::FromProcess;

use crate::node::{Node, PATIENCE, now_ns, pause, until};
use crate::puppet::Puppet;

const PODS: usize = 10;
const PUPPETS: usize = 40;
const OPERATIONS: u32 = 20_000;
/// Per cent of the SMs of which at least so many are held at some time, or some were left idle while processes waited.
const ENOUGH: u32 = 90;
/// An epoch so far ahead is none of a token that the agent may have given by the time it hears of it.
const FAR: u64 = 1_000_000;
/// Shares in per cent.
const SHARES: [u32; PODS] = [50, 30, 30, 10, 7, 100, 25, 1, 60, 20];

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }
}

fn occupied(puppets: &[Puppet]) -> u32 {
    let held = puppets
        .iter()
        .enumerate()
        .filter(|(_, puppet)| puppet.held().is_some());
    held.map(|(at, _)| SHARES[at % PODS]).sum()
}

#[test]
fn sms_never_add_up_to_more_than_there_are() {
    let seed = std::env::var("SEED").map_or(0x5eed, |seed| seed.parse().unwrap());
    let mut random = Random(seed);
    let node = Node::new();
    let pods: Vec<_> = (0_u32..)
        .zip(SHARES)
        .map(|(key, share)| node.pod(key, share))
        .collect();
    let begin = |at: usize| {
        let puppet = node.begun(&pods[at % PODS]);
        // As long as it says so, nobody takes it for deaf.
        puppet.claims_work();
        puppet
    };
    let mut puppets: Vec<_> = (0..PUPPETS).map(begin).collect();
    // A service that has just begun grants nothing for a while: pods that were there before it are to be found first.
    puppets[0].ask();
    until("the first token", || puppets[0].held());
    assert!(puppets[0].give_back());
    let begin_of_operations = Instant::now();
    let mut most = 0;
    let mut operation = 0;
    // However fast the operations are, the service is given the time to answer them.
    while operation < OPERATIONS || (most < ENOUGH && begin_of_operations.elapsed() < PATIENCE) {
        operation += 1;
        let at = random.below(PUPPETS);
        let puppet = &mut puppets[at];
        match random.below(20) {
            0..8 => puppet.ask(),
            8..14 => {
                let _none = puppet.give_back();
            }
            14 | 15 => {
                let now = now_ns();
                let facts = puppet.facts();
                facts.push(now.saturating_sub(100_000), now);
                facts.busy_ns.fetch_add(100_000, Ordering::Release);
                facts.launches.0.fetch_add(1, Ordering::Release);
            }
            16 => {
                let epoch = [
                    0,
                    1,
                    u64::MAX,
                    puppet.epoch() + FAR,
                    puppet.epoch() + FAR + 1,
                ][random.below(5)];
                puppet.say(&FromProcess::Ask { epoch });
                if Some(epoch) != puppet.held() {
                    puppet.say(&FromProcess::Closed { epoch });
                }
            }
            17 => node.change(&pods[at % PODS], |settings| {
                settings.quota_limit_ppm = [1, 500_000, 1_000_000][random.below(3)];
                settings.quota_request_ppm = settings.quota_limit_ppm / 20;
            }),
            18 if operation % 8 == 0 => {
                // It connects anew, after it has given back, and before the old connection is gone.
                let _none = puppet.give_back();
                let busy = puppet.facts().busy_ns.load(Ordering::Relaxed);
                *puppet = begin(at);
                puppet.facts().busy_ns.store(busy, Ordering::Release);
            }
            _ => {
                // The others go on.
                if operation % 16 == 0 {
                    pause(1);
                }
            }
        }
        let sum = occupied(&puppets);
        assert!(
            sum <= 100,
            "{sum} % in operation {operation} of seed {seed}"
        );
        most = most.max(sum);
        if operation % 500 == 0 {
            let slot = node.of_slot();
            assert!(slot.held_hundredths <= 10_000, "seed {seed}");
        }
    }
    assert!(
        most >= ENOUGH,
        "{most} % of the SMs at most were held in {operation} operations and {:?}, waited for {ENOUGH} %, seed {seed}",
        begin_of_operations.elapsed()
    );
    // Everybody gets a token in the end, and then nobody has one.
    for pod in &pods {
        node.change(pod, |settings| {
            settings.quota_limit_ppm = 1_000_000;
            settings.quota_request_ppm = 50_000;
        });
    }
    for puppet in &mut puppets {
        let _none = puppet.give_back();
        let busy_since = &puppet.facts().busy_since;
        busy_since.store(0, Ordering::Release);
    }
    let mut served = [false; PUPPETS];
    for puppet in &puppets {
        puppet.ask();
    }
    until("everybody's turn", || {
        for (puppet, served) in puppets.iter_mut().zip(&mut served) {
            *served |= puppet.give_back();
            if !*served {
                puppet.ask();
            }
        }
        served.iter().all(|own| *own).then_some(())
    });
    until("the end", || {
        for puppet in &mut puppets {
            let _none = puppet.give_back();
        }
        let slot = node.of_slot();
        ((slot.holders, slot.waiters, slot.held_hundredths) == (0, 0, 0)).then_some(())
    });
    let figures = node.figures();
    for pod in &figures.pods {
        assert!(pod.counters.grants > 0 && pod.counters.waits.count() == pod.counters.grants);
        assert!(!pod.has_token && !pod.is_waiting, "{}", pod.pod.name);
    }
}
