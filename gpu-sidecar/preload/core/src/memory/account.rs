//! How much device memory the process holds, of what kind, and how much of the pod's limit it has claimed. Pure.
//!
//! A claim is the process's share in the limit of its pod: as long as all processes of a pod hold no more than they have
//! claimed, and all claims together are within the limit, so is the pod. Claims are made somewhat ahead, because each costs a
//! question to the agent.

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The program's plain allocations, which are mappings of ours.
    Plain,
    /// Mapped, and with nobody: for the next small allocation, for allocations during a capture. Given up before anything
    /// is refused.
    Spare,
    /// Made by the program itself with `cuMemCreate`.
    Program,
    /// Managed memory, arrays, and what the driver has allocated in any other way of its own.
    Native,
    /// Stream-ordered pools and memory nodes of graphs.
    Pool,
    /// What a context keeps for itself.
    Residue,
}

/// How many kinds there are.
const KINDS: usize = 6;
/// A claim is made so much further ahead than needed: this part of the limit,
const CHUNKS_IN_LIMIT: u64 = 16;
/// but never more than this.
const CHUNK_MAX: u64 = 256 << 20;
/// So many chunks without use are too many.
const CHUNKS_KEPT: u64 = 2;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Account {
    held: [u64; KINDS],
    claimed: u64,
}

/// What is to be claimed, in all: at best, and at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) ahead: u64,
    pub(super) exact: u64,
}

fn chunk(limit: u64) -> u64 {
    (limit / CHUNKS_IN_LIMIT).clamp(1, CHUNK_MAX)
}

impl Account {
    /// How much there is of a kind.
    pub(super) const fn of(&self, kind: Kind) -> u64 {
        self.held[kind as usize]
    }

    /// All of it.
    pub(super) fn total(&self) -> u64 {
        self.held
            .iter()
            .fold(0, |sum: u64, held| sum.saturating_add(*held))
    }

    /// What could not be moved elsewhere.
    pub(super) const fn fixed(&self) -> u64 {
        self.of(Kind::Program)
            .saturating_add(self.of(Kind::Native))
            .saturating_add(self.of(Kind::Pool))
    }

    /// What the program has got, by its own lights.
    pub(super) fn of_program(&self) -> u64 {
        self.total() - self.of(Kind::Spare) - self.of(Kind::Residue)
    }

    /// More of a kind, whether or not it is within anything.
    pub(super) const fn add(&mut self, kind: Kind, bytes: u64) {
        self.held[kind as usize] = self.held[kind as usize].saturating_add(bytes);
    }

    /// Less of a kind; never less than nothing.
    pub(super) const fn subtract(&mut self, kind: Kind, bytes: u64) {
        self.held[kind as usize] = self.held[kind as usize].saturating_sub(bytes);
    }

    /// As much of a kind as was measured.
    pub(super) const fn set(&mut self, kind: Kind, bytes: u64) {
        self.held[kind as usize] = bytes;
    }

    /// So much more may be held without asking; `limit` 0: anything.
    pub(super) fn is_claimed(&self, more: u64, limit: u64) -> bool {
        let wanted = self.total().checked_add(more);
        limit == 0 || wanted.is_some_and(|wanted| wanted <= self.claimed.min(limit))
    }

    /// What to claim in order to hold so much more; nothing helps beyond the limit.
    pub(super) fn ask(&self, more: u64, limit: u64) -> Option<Ask> {
        let exact = self.total().checked_add(more)?;
        (exact <= limit).then(|| Ask {
            ahead: exact.saturating_add(chunk(limit)).min(limit),
            exact,
        })
    }

    /// What is claimed, in bytes.
    pub(super) const fn claim(&self) -> u64 {
        self.claimed
    }

    /// A claim was granted.
    pub(super) const fn claimed(&mut self, total: u64) {
        self.claimed = total;
    }

    /// What to claim instead, where much more is claimed than held.
    pub(super) fn surplus(&self, limit: u64) -> Option<u64> {
        let keep = self.total().saturating_add(chunk(limit));
        let is_much = self.claimed.saturating_sub(self.total()) > CHUNKS_KEPT * chunk(limit);
        (limit > 0 && is_much).then_some(keep)
    }

    /// The same for an agent that needs every byte: no more than is held. Nothing, where nothing is over.
    pub(super) fn unused(&self) -> Option<u64> {
        (self.claimed > self.total()).then(|| self.total())
    }
}

#[cfg(test)]
mod tests {
    use super::super::spans::tests::Random;
    use super::*;

    const LIMIT: u64 = 16_000;

    #[test]
    fn a_claim_is_made_ahead_and_given_back() {
        let mut account = Account::default();
        assert!(!account.is_claimed(1, LIMIT));
        let ask = account.ask(100, LIMIT).unwrap();
        assert_eq!((ask.ahead, ask.exact), (1_100, 100));
        account.claimed(ask.ahead);
        account.add(Kind::Plain, 100);
        assert!(account.is_claimed(1_000, LIMIT));
        assert!(!account.is_claimed(1_001, LIMIT));
        account.claimed(2_101);
        assert_eq!(account.surplus(LIMIT), Some(1_100));
        account.claimed(2_100);
        assert_eq!(account.surplus(LIMIT), None);
        assert_eq!(account.unused(), Some(100));
    }

    #[test]
    fn nothing_is_asked_beyond_the_limit() {
        let mut account = Account::default();
        account.add(Kind::Plain, 15_500);
        assert_eq!(
            account.ask(500, LIMIT),
            Some(Ask {
                ahead: LIMIT,
                exact: LIMIT
            })
        );
        assert_eq!(account.ask(501, LIMIT), None);
        assert_eq!(account.ask(u64::MAX, LIMIT), None);
        // A limit that shrinks counts at once, whatever was claimed.
        account.claimed(LIMIT);
        assert!(!account.is_claimed(1, 15_500));
    }

    #[test]
    fn without_a_limit_nothing_is_claimed() {
        let mut account = Account::default();
        assert!(account.is_claimed(u64::MAX, 0));
        account.add(Kind::Native, 7);
        assert!(account.is_claimed(u64::MAX, 0));
        assert_eq!(account.surplus(0), None);
    }

    #[test]
    fn a_free_of_what_was_not_counted_subtracts_nothing_below_zero() {
        let mut account = Account::default();
        account.add(Kind::Pool, 5);
        account.subtract(Kind::Pool, 17);
        account.subtract(Kind::Plain, 1);
        assert_eq!(account.total(), 0);
    }

    #[test]
    fn what_the_program_has_is_neither_spare_nor_residue() {
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
        assert_eq!(account.fixed(), 11_100);
        account.set(Kind::Pool, 1);
        assert_eq!(account.fixed(), 1_101);
    }

    /// Processes of a pod that keep to the rules never hold more than the limit, and reach it to the byte.
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
                    let ask = account.ask(bytes, LIMIT);
                    let granted = ask.and_then(|ask| {
                        [ask.ahead, ask.exact]
                            .into_iter()
                            .find(|total| others + total <= LIMIT)
                    });
                    match granted {
                        Some(total) => account.claimed(total),
                        None => {
                            refused += 1;
                            continue;
                        }
                    }
                }
                account.add(Kind::Plain, bytes);
            } else {
                account.subtract(Kind::Plain, random.below(390));
                if let Some(total) = account.surplus(LIMIT) {
                    account.claimed(total);
                }
            }
            let held: u64 = accounts.iter().map(Account::total).sum();
            assert!(held <= LIMIT);
        }
        assert!(refused > 100, "the limit was never met");
        // What lies idle in the claims of the others can be asked back, and then all of it is to be had.
        for account in &mut accounts {
            if let Some(total) = account.unused() {
                account.claimed(total);
            }
        }
        let others = accounts[1].claimed + accounts[2].claimed;
        let left = LIMIT - others - accounts[0].total();
        let ask = accounts[0].ask(left, LIMIT).unwrap();
        assert_eq!(others + ask.exact, LIMIT);
    }
}
