//! When certificates are renewed, and which authorities are trusted meanwhile.
//!
//! A new authority is published before it signs, for as long as it takes until all who trust read it, and the one before it stays
//! trusted until its own end: at no time is a certificate in use whose authority is not known where it is checked.
//!
//! Times are in seconds of the wall clock, since the Unix epoch: certificates carry them.

/// From when until when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first second in which it is valid.
    pub begin: i64,
    /// The last one; not before `begin`.
    pub end: i64,
}

impl Validity {
    /// Returns the second from which on it is renewed: at two thirds of its life.
    #[must_use]
    pub const fn renewal(&self) -> i64 {
        let life = self.end.saturating_sub(self.begin);
        self.end.saturating_sub(life / 3)
    }

    /// Whether a certificate under an authority is to be replaced: it is due for renewal, or over.
    #[must_use]
    pub const fn is_due(&self, now: i64) -> bool {
        now >= self.renewal()
    }
}

/// Authorities, as they are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Authorities {
    /// That which signs.
    pub current: Option<Validity>,
    /// That which is published and does not sign yet, and the second of its publication.
    pub next: Option<(Validity, i64)>,
    /// That which signed before.
    pub previous: Option<Validity>,
}

/// What to do about authorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make one that signs at once: there is none that can be used.
    Create,
    /// Make the next one, and publish it.
    Publish,
    /// Let the next one sign; the current one becomes the previous one, and the previous one is dropped.
    Promote,
    /// Drop the previous one, which is over.
    Drop,
    /// Nothing before this second.
    Rest(i64),
}

/// Returns what to do. `spread`: seconds until a published authority is known wherever certificates are checked.
#[must_use]
pub fn next_step(now: i64, authorities: &Authorities, spread: i64) -> Step {
    let next = authorities.next.filter(|(next, _)| now < next.end);
    let Some(current) = authorities.current.filter(|current| now < current.end) else {
        return match next {
            Some(_) => Step::Promote,
            None => Step::Create,
        };
    };
    let is_over = |previous: &Validity| now >= previous.end;
    if authorities.previous.as_ref().is_some_and(is_over) {
        return Step::Drop;
    }
    let mut until = match next {
        Some((_, published)) => {
            let known = published.saturating_add(spread);
            if now >= known {
                return Step::Promote;
            }
            known
        }
        None if current.is_due(now) => return Step::Publish,
        None => current.renewal(),
    };
    until = until.min(current.end);
    if let Some(previous) = authorities.previous {
        until = until.min(previous.end);
    }
    Step::Rest(until)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: i64 = 900;
    const SPREAD: i64 = 60;

    fn valid(begin: i64) -> Validity {
        Validity {
            begin,
            end: begin + LIFE,
        }
    }

    #[test]
    fn an_authority_is_renewed_at_two_thirds_of_its_life() {
        let current = Some(valid(0));
        let authorities = Authorities {
            current,
            ..Authorities::default()
        };
        assert_eq!(next_step(599, &authorities, SPREAD), Step::Rest(600));
        assert_eq!(next_step(600, &authorities, SPREAD), Step::Publish);
    }

    #[test]
    fn a_new_authority_signs_only_when_it_is_known_everywhere() {
        let authorities = Authorities {
            current: Some(valid(0)),
            next: Some((valid(600), 600)),
            previous: None,
        };
        assert_eq!(next_step(659, &authorities, SPREAD), Step::Rest(660));
        assert_eq!(next_step(660, &authorities, SPREAD), Step::Promote);
    }

    #[test]
    fn what_is_published_signs_at_once_where_nothing_else_can() {
        let authorities = Authorities {
            current: Some(valid(0)),
            next: Some((valid(890), 890)),
            previous: None,
        };
        assert_eq!(next_step(900, &authorities, SPREAD), Step::Promote);
        let none = Authorities::default();
        assert_eq!(next_step(900, &none, SPREAD), Step::Create);
    }

    #[test]
    fn a_clock_that_is_set_back_changes_nothing() {
        let authorities = Authorities {
            current: Some(valid(10_000)),
            ..Authorities::default()
        };
        assert_eq!(next_step(5, &authorities, SPREAD), Step::Rest(10_600));
    }
}
