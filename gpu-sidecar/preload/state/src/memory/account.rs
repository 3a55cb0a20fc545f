//! Account of the device memory held by the process, by kind, and of the part of the pod's limit it has claimed. Performs no I/O.
//!
//! A claim is the process's share of its pod's limit. While every process of a pod holds at most its claim, and the claims
//! together are within the limit, the pod is within its limit. Nothing is claimed ahead of need: what a process does not use would keep other models away
//! from the slot.

use protocol::page::FIXED_REASONS;

/// Use of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The program's plain allocations, which are mappings of this library.
    Plain,
    /// Mapped but unused: a reserve for small allocations and for allocations during a capture, and blocks freed amid others with which they share a handle.
    /// Released before any allocation is refused, as far as the mover can move what is beside the latter.
    Spare,
    /// Created by the program itself with `cuMemCreate`.
    Program,
    /// Plain allocations of the driver itself: where memory cannot be mapped, or the historical functions need addresses of 32 bits.
    Native,
    /// Managed memory.
    Managed,
    /// Arrays.
    Array,
    /// Stream-ordered pools.
    Pool,
    /// Memory nodes of graphs.
    Graph,
    /// Memory that a context occupies by itself.
    Residue,
}

/// Number of kinds.
const KINDS: usize = 9;
/// Account of the device memory held by the process, and of its claim; kept by kind.
#[derive(Debug, Default)]
pub struct Account {
    held: [u64; KINDS],
    claimed: u64,
}

impl Account {
    /// Creates the account of a process that holds nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            held: [0; KINDS],
            claimed: 0,
        }
    }

    /// Returns the bytes held of a kind.
    #[must_use]
    pub const fn of(&self, kind: Kind) -> u64 {
        self.held[kind as usize]
    }

    /// Returns the bytes held of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.held
            .iter()
            .fold(0, |sum: u64, held| sum.saturating_add(*held))
    }

    /// Returns the bytes that cannot be moved out of the device.
    #[must_use]
    pub fn fixed(&self) -> u64 {
        let [of_memory @ .., _context] = self.fixed_by_reason();
        of_memory.into_iter().fold(0, u64::saturating_add)
    }

    /// Returns the bytes that stay on the device when all that moves has left, by the reasons [`protocol::page::FIXED_REASONS`].
    #[must_use]
    pub fn fixed_by_reason(&self) -> [u64; FIXED_REASONS.len()] {
        [
            Kind::Pool,
            Kind::Graph,
            Kind::Array,
            Kind::Managed,
            Kind::Native,
            Kind::Residue,
        ]
        .map(|kind| self.of(kind))
    }

    /// Returns the bytes that the program itself has allocated.
    #[must_use]
    pub fn of_program(&self) -> u64 {
        self.total() - self.of(Kind::Spare) - self.of(Kind::Residue)
    }

    /// Adds bytes of a kind, within the claim or not.
    pub const fn add(&mut self, kind: Kind, bytes: u64) {
        self.held[kind as usize] = self.held[kind as usize].saturating_add(bytes);
    }

    /// Subtracts bytes of a kind, saturating at 0.
    pub const fn subtract(&mut self, kind: Kind, bytes: u64) {
        self.held[kind as usize] = self.held[kind as usize].saturating_sub(bytes);
    }

    /// Sets a kind to the measured number of bytes.
    pub const fn set(&mut self, kind: Kind, bytes: u64) {
        self.held[kind as usize] = bytes;
    }

    /// Returns whether `more` bytes may be held without a further claim. A `limit` of 0 allows any number.
    #[must_use]
    pub fn is_claimed(&self, more: u64, limit: u64) -> bool {
        let wanted = self.total().checked_add(more);
        limit == 0 || wanted.is_some_and(|wanted| wanted <= self.claimed.min(limit))
    }

    /// Returns the total to claim for `more` bytes; `None` if it would exceed the limit.
    #[must_use]
    pub fn claim_for(&self, more: u64, limit: u64) -> Option<u64> {
        let total = self.total().checked_add(more)?;
        (total <= limit).then_some(total)
    }

    /// Returns the claim in bytes.
    #[must_use]
    pub const fn claim(&self) -> u64 {
        self.claimed
    }

    /// Sets the claim after the agent has granted it.
    pub const fn set_claim(&mut self, total: u64) {
        self.claimed = total;
    }

    /// Returns the lowest total to claim under a limit; `None` if the whole claim is used.
    #[must_use]
    pub fn unused(&self, limit: u64) -> Option<u64> {
        (limit > 0 && self.claimed > self.total()).then(|| self.total())
    }
}

#[cfg(test)]
mod tests {
    use testing::Random;

    use super::*;

    const LIMIT: u64 = 16_000;

    #[test]
    fn a_claim_is_for_the_need_and_its_unused_part_is_returned() {
        let mut account = Account::default();
        assert!(!account.is_claimed(1, LIMIT));
        assert_eq!(account.claim_for(100, LIMIT), Some(100));
        account.set_claim(100);
        assert!(account.is_claimed(100, LIMIT) && !account.is_claimed(101, LIMIT));
        account.add(Kind::Plain, 100);
        assert_eq!(account.unused(LIMIT), None);
        account.subtract(Kind::Plain, 1);
        assert_eq!(account.unused(LIMIT), Some(99));
    }

    #[test]
    fn memory_that_stays_is_known_by_reason() {
        let mut account = Account::default();
        let kinds = [
            Kind::Pool,
            Kind::Graph,
            Kind::Array,
            Kind::Managed,
            Kind::Native,
            Kind::Residue,
            Kind::Plain,
            Kind::Program,
            Kind::Spare,
        ];
        for (number, kind) in kinds.into_iter().enumerate() {
            account.add(kind, 1 << number);
        }
        assert_eq!(account.fixed_by_reason(), [1, 2, 4, 8, 16, 32]);
        assert_eq!(account.fixed(), 31, "without the context");
        assert_eq!(account.total(), 511);
    }

    #[test]
    fn nothing_is_claimed_beyond_the_limit() {
        let mut account = Account::default();
        account.add(Kind::Plain, 15_500);
        assert_eq!(account.claim_for(500, LIMIT), Some(LIMIT));
        assert_eq!(account.claim_for(501, LIMIT), None);
        assert_eq!(account.claim_for(u64::MAX, LIMIT), None);
        // A lowered limit takes effect at once, whatever was claimed.
        account.set_claim(LIMIT);
        assert!(!account.is_claimed(1, 15_500));
    }

    #[test]
    fn without_a_limit_nothing_is_claimed() {
        let mut account = Account::default();
        assert!(account.is_claimed(u64::MAX, 0));
        account.add(Kind::Native, 7);
        assert!(account.is_claimed(u64::MAX, 0));
        assert_eq!(account.unused(0), None);
    }

    #[test]
    fn freeing_uncounted_memory_never_makes_a_count_negative() {
        let mut account = Account::default();
        account.add(Kind::Pool, 5);
        account.subtract(Kind::Pool, 17);
        account.subtract(Kind::Plain, 1);
        assert_eq!(account.total(), 0);
    }

    #[test]
    fn memory_of_the_program_excludes_spare_and_residue() {
        let mut account = Account::default();
        for (kind, bytes) in [
            (Kind::Plain, 1),
            (Kind::Spare, 10),
            (Kind::Program, 100),
            (Kind::Native, 1_000),
            (Kind::Pool, 10_000),
            (Kind::Residue, 100_000),
        ] {
            account.add(kind, bytes);
            assert_eq!(account.of(kind), bytes);
        }
        assert_eq!(account.total(), 111_111);
        assert_eq!(account.of_program(), 11_101);
        assert_eq!(account.fixed(), 11_000);
        account.set(Kind::Pool, 1);
        assert_eq!(account.fixed(), 1_001);
    }

    /// Processes of a pod that keep to their claims never hold more than the limit, and can reach it exactly.
    #[test]
    fn processes_share_one_limit_exactly() {
        let mut random = Random(3);
        let mut accounts = [Account::default(), Account::default(), Account::default()];
        let mut refused = 0;
        for _ in 0..200_000 {
            let which = usize::try_from(random.below(3)).unwrap();
            let others: u64 = (0..3)
                .filter(|other| *other != which)
                .map(|other| accounts[other].claimed)
                .sum();
            let account = &mut accounts[which];
            if random.below(2) == 0 {
                let bytes = random.below(400);
                if !account.is_claimed(bytes, LIMIT) {
                    let total = account.claim_for(bytes, LIMIT);
                    let granted = total.filter(|total| others + total <= LIMIT);
                    match granted {
                        Some(total) => account.set_claim(total),
                        None => {
                            refused += 1;
                            continue;
                        }
                    }
                }
                account.add(Kind::Plain, bytes);
            } else {
                account.subtract(Kind::Plain, random.below(390));
                if let Some(total) = account.unused(LIMIT) {
                    account.set_claim(total);
                }
            }
            let held: u64 = accounts.iter().map(Account::total).sum();
            assert!(held <= LIMIT);
        }
        assert!(refused > 100, "the limit was never reached");
        // The unused parts of the others' claims can be reclaimed, after which the rest of the limit can be claimed.
        for account in &mut accounts {
            if let Some(total) = account.unused(LIMIT) {
                account.set_claim(total);
            }
        }
        let others = accounts[1].claimed + accounts[2].claimed;
        let left = LIMIT - others - accounts[0].total();
        let total = accounts[0].claim_for(left, LIMIT).unwrap();
        assert_eq!(others + total, LIMIT);
    }
}
