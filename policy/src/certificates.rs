//! When certificates are renewed, and which authorities are trusted in the meantime.
//!
//! A new authority is published before it signs, for as long as it takes until every verifier has read it, and the
//! authority before it stays trusted until its own end. So no certificate is ever in use whose authority is unknown to
//! a verifier.
//!
//! Times are in seconds of the wall clock since the Unix epoch, because that is what certificates contain.
//!
//! # Examples
//!
//! ```
//! use policy::certificates::{Authorities, Step, Validity, next_step};
//!
//! let mut authorities = Authorities::default();
//! assert_eq!(next_step(0, &authorities, 60), Step::Create);
//! authorities.current = Some(Validity { begin: 0, end: 900 });
//! assert_eq!(next_step(1, &authorities, 60), Step::Rest(600));
//! assert_eq!(next_step(600, &authorities, 60), Step::Publish);
//! ```

/// Period in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// First second in which the certificate is valid.
    pub begin: i64,
    /// Last second in which the certificate is valid; not before `begin`.
    pub end: i64,
}

impl Validity {
    /// Returns the second from which the certificate is renewed, which is at two thirds of its life.
    #[must_use]
    pub const fn renewal(&self) -> i64 {
        let life = self.end.saturating_sub(self.begin);
        self.end.saturating_sub(life / 3)
    }

    /// Returns whether the certificate must be replaced: it is due for renewal, or has expired.
    #[must_use]
    pub const fn is_due(&self, now: i64) -> bool {
        now >= self.renewal()
    }
}

/// Authorities as they are stored, of which up to three are trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Authorities {
    /// Authority that signs certificates at present.
    pub current: Option<Validity>,
    /// Authority that is published and does not sign yet, with the second of its publication.
    pub next: Option<(Validity, i64)>,
    /// Authority that signed before the current one.
    pub previous: Option<Validity>,
}

/// Next step in the rotation of authorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create an authority that signs at once: no usable one exists.
    Create,
    /// Create the next authority and publish it.
    Publish,
    /// Let the next authority sign: it becomes the current one, the current one becomes the previous one, and the
    /// previous one is dropped.
    Promote,
    /// Drop the previous authority, which has expired.
    Drop,
    /// Do nothing before this second.
    Rest(i64),
}

/// Returns the next step at `now`. `spread` is the number of seconds until a published authority is known to every
/// verifier.
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
    fn a_new_authority_signs_only_once_every_verifier_knows_it() {
        let authorities = Authorities {
            current: Some(valid(0)),
            next: Some((valid(600), 600)),
            previous: None,
        };
        assert_eq!(next_step(659, &authorities, SPREAD), Step::Rest(660));
        assert_eq!(next_step(660, &authorities, SPREAD), Step::Promote);
    }

    #[test]
    fn a_published_authority_signs_at_once_if_no_other_can() {
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
