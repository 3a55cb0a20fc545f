//! A memory compared with a list of the present pods, over random operations.
#![expect(clippy::print_stdout, reason = "figures, seen with --nocapture")]

use policy::footprint::{Footprint, Memory};
use policy::rectangles::FunctionId;
use testing::Random;

const SEED: u64 = 31;
const CAPACITY: u64 = 200;

/// Returns the memory in use: of each function the largest storage claimed since it was last without pods, plus each
/// pod's own.
fn used(pods: &[(FunctionId, Footprint)], storages: &[u64]) -> u64 {
    let held = (0_u32..)
        .zip(storages)
        .filter(|(function, _)| pods.iter().any(|(of, _)| *of == FunctionId(*function)));
    let storage: u64 = held.map(|(_, storage)| storage).sum();
    storage + pods.iter().map(|(_, footprint)| footprint.pod).sum::<u64>()
}

#[test]
fn usage_equals_the_pods_need_and_never_exceeds_the_capacity() {
    println!("seed {SEED}");
    let mut random = Random(SEED);
    let mut memory = Memory::new(CAPACITY);
    let mut pods: Vec<(FunctionId, Footprint)> = Vec::new();
    let mut storages = [0_u64; 5];
    let (mut admitted, mut refused) = (0, 0);
    for _ in 0..20_000 {
        if random.below_u32(2) == 0 && !pods.is_empty() {
            let at = random.below_u32(u32::try_from(pods.len()).expect("few")) as usize;
            let (function, footprint) = pods.swap_remove(at);
            memory.release(function, &footprint);
            if pods.iter().all(|(of, _)| *of != function) {
                storages[function.0 as usize] = 0;
            }
        } else {
            let function = FunctionId(random.below_u32(5));
            let footprint = Footprint {
                storage: u64::from(random.below_u32(3) * 20),
                pod: u64::from(random.below_u32(30)),
            };
            let mut after = pods.clone();
            after.push((function, footprint));
            let mut storages_after = storages;
            let storage = &mut storages_after[function.0 as usize];
            *storage = (*storage).max(footprint.storage);
            let needed = used(&after, &storages_after);
            assert_eq!(memory.needs(function, &footprint), needed - memory.used());
            let fits = memory.admit(function, &footprint);
            assert_eq!(fits, needed <= CAPACITY);
            if fits {
                (pods, storages) = (after, storages_after);
                admitted += 1;
            } else {
                refused += 1;
            }
        }
        assert_eq!(memory.used(), used(&pods, &storages));
        assert_eq!(memory.used() + memory.free(), CAPACITY);
        let counted: u32 = memory.holders().iter().map(|holder| holder.pods).sum();
        assert_eq!(counted as usize, pods.len());
        // Removing an unknown pod of another function changes nothing.
        memory.release(FunctionId(99), &Footprint::unshared(1));
    }
    println!("{admitted} admitted, {refused} refused");
    assert!(admitted > 1_000 && refused > 1_000);
}
