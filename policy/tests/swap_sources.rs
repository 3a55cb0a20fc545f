//! Copies from slot to slot, compared with the documented invariants.

use policy::swap::{
    SourceId, Sources, StartReason, StopReason, TransferAction, TransferId, TransferTaken,
};
use testing::Random;

const SOURCES: usize = 4;
const TRANSFERS: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Source {
    running: bool,
    dirty: bool,
    /// Number of times it has been written.
    version: u32,
}

/// For each copy its source, and the version that it copies once started.
type Copies = [Option<(usize, Option<u32>)>; TRANSFERS];

#[test]
fn no_copy_mixes_versions_and_every_wait_has_a_reason() {
    let mut stopped = 0;
    let mut waited = 0;
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut sources = Sources::new();
        let mut known = [Source::default(); SOURCES];
        let mut copies: Copies = [None; TRANSFERS];
        let mut actions = Vec::new();
        for step in 0..300 {
            let context = format!("seed {seed}, step {step}");
            let at = usize::try_from(random.below(SOURCES as u64)).unwrap();
            let source = SourceId(u32::try_from(at).unwrap());
            let copy = usize::try_from(random.below(TRANSFERS as u64)).unwrap();
            let transfer = TransferId(u32::try_from(copy).unwrap());
            match random.below(12) {
                0..4 => {
                    let result = sources.request(transfer, source, &mut actions);
                    let taken = copies[copy].is_some();
                    assert_eq!(result.is_err(), taken, "{context}");
                    if taken {
                        assert_eq!(result, Err(TransferTaken { transfer }));
                    } else {
                        copies[copy] = Some((at, None));
                    }
                }
                4..6 => {
                    sources.ended(transfer);
                    copies[copy] = None;
                }
                // Mostly queries first.
                6..8 if sources.may_run(source) || random.below(4) == 0 => {
                    known[at].running = true;
                    sources.running(source, true, &mut actions);
                }
                8 => {
                    known[at].running = false;
                    sources.running(source, false, &mut actions);
                }
                9 => {
                    known[at].dirty = true;
                    known[at].version += 1;
                    sources.wrote(source, &mut actions);
                }
                10 => {
                    known[at].dirty = false;
                    sources.cleaned(source, &mut actions);
                }
                11 if random.below(8) == 0 => {
                    sources.remove(source, &mut actions);
                    for copy in &mut copies {
                        if copy.is_some_and(|(source, _)| source == at) {
                            let stop = |action: &TransferAction| {
                                matches!(
                                    action,
                                    TransferAction::Stop {
                                        reason: StopReason::SourceGone,
                                        ..
                                    }
                                )
                            };
                            assert!(actions.iter().any(stop), "{context}");
                            *copy = None;
                        }
                    }
                    actions.clear();
                    known[at] = Source::default();
                }
                _ => {}
            }
            for action in actions.drain(..) {
                match action {
                    TransferAction::Start { transfer, reason } => {
                        let (source, copied) = copies[transfer.0 as usize].as_mut().unwrap();
                        assert_eq!(*copied, None, "{context}: started twice");
                        let source = known[*source];
                        *copied = Some(source.version);
                        let expected = if source.dirty {
                            StartReason::Idle
                        } else {
                            StartReason::ReadOnly
                        };
                        assert_eq!(reason, expected, "{context}");
                    }
                    TransferAction::Stop { transfer, reason } => {
                        let (_, copied) = copies[transfer.0 as usize].as_mut().unwrap();
                        assert!(
                            copied.take().is_some(),
                            "{context}: stopped, but not started"
                        );
                        assert_eq!(reason, StopReason::SourceWrote, "{context}");
                        stopped += 1;
                    }
                }
            }
            for (at, source) in known.iter().enumerate() {
                let id = SourceId(u32::try_from(at).unwrap());
                let of_it = || {
                    copies
                        .iter()
                        .flatten()
                        .filter(move |(source, _)| *source == at)
                };
                assert_eq!(sources.may_evict(id), of_it().count() == 0, "{context}");
                let copied = of_it().filter(|(_, copied)| copied.is_some()).count();
                assert_eq!(
                    sources.may_run(id),
                    !(source.dirty && copied > 0),
                    "{context}"
                );
                for (_, copied) in of_it() {
                    if source.dirty && source.running {
                        assert_eq!(*copied, None, "{context}: a copy of what is being written");
                        waited += 1;
                    } else {
                        assert_eq!(
                            *copied,
                            Some(source.version),
                            "{context}: waits, or copies old bytes"
                        );
                    }
                }
            }
        }
    }
    assert!(stopped > 500 && waited > 500, "{stopped} {waited}");
}

#[test]
fn copies_of_a_dirty_source_start_in_the_order_of_arrival_when_it_is_idle() {
    let mut sources = Sources::new();
    let mut actions = Vec::new();
    let source = SourceId(3);
    sources.running(source, true, &mut actions);
    sources.wrote(source, &mut actions);
    for id in [5, 1, 7, 2] {
        sources
            .request(TransferId(id), source, &mut actions)
            .unwrap();
    }
    sources.ended(TransferId(7));
    assert!(actions.is_empty() && !sources.may_evict(source));
    sources.running(source, false, &mut actions);
    let start = |id| TransferAction::Start {
        transfer: TransferId(id),
        reason: StartReason::Idle,
    };
    assert_eq!(actions, [start(5), start(1), start(2)]);
    assert!(!sources.may_run(source));
    for id in [5, 1, 2] {
        sources.ended(TransferId(id));
    }
    assert!(sources.may_run(source) && sources.may_evict(source));
}

#[test]
fn warm_copies_allocate_nothing() {
    let mut sources = Sources::new();
    let mut actions = Vec::with_capacity(64);
    let work = |sources: &mut Sources, actions: &mut Vec<TransferAction>| {
        let mut started = 0;
        for n in 0..1_000 {
            let source = SourceId(n % 10);
            sources.running(source, n % 3 == 0, actions);
            sources
                .request(TransferId(n % 40), source, actions)
                .unwrap();
            sources.wrote(source, actions);
            sources.running(source, false, actions);
            sources.ended(TransferId(n % 40));
            sources.cleaned(source, actions);
            started += actions.len();
            actions.clear();
        }
        started
    };
    work(&mut sources, &mut actions);
    let mut started = 0;
    let counted = allocation_counter::measure(|| started = work(&mut sources, &mut actions));
    assert!(started > 1_000);
    assert_eq!(counted.count_total, 0, "{counted:?}");
}
