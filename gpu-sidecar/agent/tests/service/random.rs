//! Random operations of forty processes in ten pods, against a naive model: the SMs of the processes with an observed open gate
//! and without a return of it.

use std::fs::File;
use std::io::BufReader;
use std::sync::atomic::Ordering;
use std::time::Instant;

use protocol::message::FromProcess;

use testing::{PATIENCE, Random, until};

use crate::node::{Node, now_ns, pause};
use crate::puppet::Puppet;

const PODS: usize = 10;
const PUPPETS: usize = 40;
const OPERATIONS: u32 = 20_000;
/// Per cent of the SMs that must be held at some time; otherwise SMs stayed idle while processes waited.
const ENOUGH: u32 = 90;
/// Distance to an epoch which the agent cannot reach before it handles the message.
const FAR: u64 = 1_000_000;
/// SM shares of the pods, in percent.
const SHARES: [u32; PODS] = [50, 30, 30, 10, 7, 100, 25, 1, 60, 20];

fn occupied(puppets: &[Puppet]) -> u32 {
    let held = puppets
        .iter()
        .enumerate()
        .filter(|(_, puppet)| puppet.held().is_some());
    held.map(|(at, _)| SHARES[at % PODS]).sum()
}

#[test]
fn held_sms_never_exceed_the_slot() {
    let seed = std::env::var("SEED").map_or(0x5eed, |seed| seed.parse().unwrap());
    let mut random = Random(seed);
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let node = Node::recorded(record.clone());
    let pods: Vec<_> = (0_u32..)
        .zip(SHARES)
        .map(|(key, share)| node.pod(key, share))
        .collect();
    let begin = |at: usize| {
        let puppet = node.attached(&pods[at % PODS]);
        // With reported work the process never counts as unresponsive.
        puppet.report_work();
        puppet
    };
    let mut puppets: Vec<_> = (0..PUPPETS).map(begin).collect();
    // A started service grants nothing for a while, until the pods of an earlier agent are found.
    puppets[0].request_token();
    until("the first token", || puppets[0].held());
    assert!(puppets[0].give_back());
    let begin_of_operations = Instant::now();
    let mut most = 0;
    let mut operation = 0;
    // Give the service time to respond, however fast the operations are.
    while operation < OPERATIONS || (most < ENOUGH && begin_of_operations.elapsed() < PATIENCE) {
        operation += 1;
        let at = random.index(PUPPETS);
        let puppet = &mut puppets[at];
        match random.index(20) {
            0..8 => puppet.request_token(),
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
                ][random.index(5)];
                puppet.send(&FromProcess::Ask { epoch });
                if Some(epoch) != puppet.held() {
                    puppet.send(&FromProcess::Closed { epoch });
                }
            }
            17 => node.change(&pods[at % PODS], |settings| {
                settings.quota_limit_ppm = [1, 500_000, 1_000_000][random.index(3)];
                settings.quota_request_ppm = settings.quota_limit_ppm / 20;
            }),
            18 if operation % 8 == 0 => {
                // The process connects again, after returning its token and before the old connection ends.
                let _none = puppet.give_back();
                let busy = puppet.facts().busy_ns.load(Ordering::Relaxed);
                *puppet = begin(at);
                puppet.facts().busy_ns.store(busy, Ordering::Release);
            }
            _ => {
                // Let the other threads run.
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
        "at most {most} % of the SMs were held in {operation} operations and {:?}, expected {ENOUGH} %, seed {seed}",
        begin_of_operations.elapsed()
    );
    // Finally every process gets a token, and none keeps one.
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
        puppet.request_token();
    }
    until("a token for every process", || {
        for (puppet, served) in puppets.iter_mut().zip(&mut served) {
            *served |= puppet.give_back();
            if !*served {
                puppet.request_token();
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
    // The service without sockets does the same.
    node.stop();
    let mut record = BufReader::new(File::open(record).unwrap());
    let replayed = agent_core::record::replay(&mut record).unwrap();
    assert!(replayed.events > 1_000, "{replayed:?}");
}
