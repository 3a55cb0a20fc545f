//! Which pods own a function, by rendezvous hashing: a pod that comes or goes moves only functions of its own.

/// A pod of role `data`, identified by a hash of its name that no other pod has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u64);

/// Writes the owners of the function with this name hash into `chosen`: `count` pods, or all if there are fewer, in
/// order of the pods' hashes. The order of `pods` does not matter.
pub fn owners(function: u64, pods: &[Owner], count: usize, chosen: &mut Vec<Owner>) {
    chosen.clear();
    chosen.extend_from_slice(pods);
    chosen.sort_unstable_by_key(|pod| (std::cmp::Reverse(score(function, *pod)), *pod));
    chosen.dedup();
    chosen.truncate(count);
    chosen.sort_unstable();
}

/// Returns the rendezvous score of a pod for a function, by SplitMix64 over both, so that similar hashes get unrelated
/// scores.
const fn score(function: u64, pod: Owner) -> u64 {
    mixed(mixed(function).wrapping_add(pod.0))
}

const fn mixed(of: u64) -> u64 {
    let z = of.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(function: u64, pods: &[Owner], count: usize) -> Vec<Owner> {
        let mut chosen = Vec::new();
        owners(function, pods, count, &mut chosen);
        chosen
    }

    #[test]
    fn each_pod_owns_about_as_many_functions_as_any_other() {
        let pods: Vec<_> = (0..5).map(Owner).collect();
        let all: Vec<_> = (0..10_000).map(|function| of(function, &pods, 1)).collect();
        for pod in pods {
            let own = all.iter().filter(|owners| **owners == [pod]).count();
            assert!((1_850..2_150).contains(&own), "{own}");
        }
    }

    #[test]
    fn a_pod_that_leaves_moves_only_its_own_functions() {
        let pods: Vec<_> = (0..5).map(Owner).collect();
        for function in 0..1_000 {
            let before = of(function, &pods, 1);
            let after = of(function, &pods[..4], 1);
            assert!(before == [Owner(4)] || before == after, "{function}");
        }
    }

    #[test]
    fn the_order_in_which_pods_are_listed_changes_nothing() {
        let pods = [Owner(7), Owner(1), Owner(3)];
        let other = [Owner(3), Owner(7), Owner(1), Owner(1)];
        for function in 0..100 {
            assert_eq!(of(function, &pods, 2), of(function, &other, 2));
        }
        assert_eq!(of(0, &pods, 9), [Owner(1), Owner(3), Owner(7)]);
        assert_eq!(of(0, &[], 1), []);
    }
}
