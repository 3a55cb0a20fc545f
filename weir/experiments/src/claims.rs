//! The papers' claims, and verdicts on whether the simulator reproduces them.
//!
//! The rule of each claim is fixed before any run is made (`claims.toml`), so that a result cannot choose its measure:
//!
//! | [`Rule`] | holds when |
//! |---|---|
//! | value | the 95 % interval of our values overlaps the paper's value ± 10 % |
//! | bound | the relation holds at the interval's worse end |
//! | order | the relation holds in at least nine of ten seeds, of ten at least |
//! | structural | the relation holds exactly; counted apart, never in the headline |
//!
//! A claim which fails is *missed*, unless it holds in a second run under the same seeds in which exactly one parameter
//! differs: then it is *explained* by that parameter. Structural claims are never explained.

mod judge;
mod page;
mod table;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use simulator::statistics::Unit;

pub use judge::{Evidence, JudgeError, Row, Run, Verdict};
pub use table::{Headline, Judged};

/// The paper which makes a claim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Paper {
    /// The FluidFaaS paper, HPDC 2025.
    FluidFaaS,
    /// The Torpor paper, USENIX ATC 2025.
    Torpor,
    /// The Granularity paper, SIGMETRICS 2025.
    Granularity,
    /// The FaST-GShare paper, ICPP 2023.
    #[serde(rename = "FaST-GShare")]
    FastGShare,
}

impl Paper {
    /// Returns the name as the paper spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FluidFaaS => "FluidFaaS",
            Self::Torpor => "Torpor",
            Self::Granularity => "Granularity",
            Self::FastGShare => "FaST-GShare",
        }
    }
}

/// Relation of our number to the paper's value, as the claim states it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Relation {
    /// Equal to the value.
    Equal,
    /// Close to the value.
    About,
    /// The value or more.
    AtLeast,
    /// The value or less.
    AtMost,
    /// The value is the largest that was reached.
    UpTo,
    /// Less than the value.
    Less,
    /// The value is a rank, counted from 1.
    Rank,
    /// The value is a truth value: 1 if the claim holds.
    Holds,
}

impl Relation {
    /// Returns whether our number is exactly in this relation to the paper's.
    #[must_use]
    pub fn holds(self, ours: f64, paper: f64) -> bool {
        match self {
            Self::Equal | Self::About | Self::Rank | Self::Holds => ours == paper,
            Self::AtLeast => ours >= paper,
            Self::AtMost | Self::UpTo => ours <= paper,
            Self::Less => ours < paper,
        }
    }

    /// Returns the text written before the value; empty for equality.
    #[must_use]
    pub const fn sign(self) -> &'static str {
        match self {
            Self::Equal | Self::Rank | Self::Holds => "",
            Self::About => "about ",
            Self::AtLeast => "≥ ",
            Self::AtMost => "≤ ",
            Self::UpTo => "up to ",
            Self::Less => "< ",
        }
    }
}

/// Condition under which a claim counts as reproduced; see the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The interval overlaps the value ± 10 %.
    Value,
    /// The relation holds at the interval's worse end.
    Bound,
    /// The relation holds in at least nine of ten seeds.
    Order,
    /// The relation holds exactly in every seed.
    Structural,
}

impl Rule {
    const fn fits(self, relation: Relation) -> bool {
        match self {
            Self::Value => matches!(relation, Relation::Equal | Relation::About),
            Self::Bound => matches!(relation, Relation::AtLeast | Relation::AtMost),
            Self::Order => {
                matches!(relation, Relation::Less | Relation::Rank | Relation::Holds)
            }
            Self::Structural => matches!(relation, Relation::Equal | Relation::UpTo),
        }
    }

    /// Returns the rule's name as in `claims.toml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Bound => "bound",
            Self::Order => "order",
            Self::Structural => "structural",
        }
    }
}

/// One sentence of a paper, expressed as a number.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Identifier as in the papers' data, such as T01 or S06.
    pub id: String,
    /// Paper which makes the claim.
    pub paper: Paper,
    /// Section, table or figure of the paper.
    #[serde(rename = "where")]
    pub place: String,
    /// Description of the number that each seed yields.
    pub metric: String,
    /// Unit of the number and of the value.
    pub unit: Unit,
    /// Relation of our number to the value.
    pub relation: Relation,
    /// The paper's value, in `unit`.
    pub value: f64,
    /// Rule of judgement, fixed before any run.
    pub rule: Rule,
    /// Remark on how to read the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Claims in the order of their file.
#[derive(Clone, PartialEq, Debug)]
pub struct Claims {
    claims: Vec<Claim>,
}

/// Error in a file of claims.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum ClaimsError {
    /// The text is not a valid file of claims.
    #[error("claims: {0}")]
    Parse(#[from] toml::de::Error),
    /// Two claims have the same id.
    #[error("claim {0} is defined twice")]
    Twice(String),
    /// The rule cannot judge the relation.
    #[error("claim {id}: rule {rule:?} does not judge {relation:?}")]
    Rule {
        /// Id of the claim.
        id: String,
        /// Rule of the claim.
        rule: Rule,
        /// Relation of the claim.
        relation: Relation,
    },
    /// The value is not finite, or is not above zero although the rule needs a band around it.
    #[error("claim {0}: the value must be finite, and above zero for the rule value")]
    Value(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    claim: Vec<Claim>,
}

impl Claims {
    /// Returns the claims of the papers which can be examined in virtual time.
    ///
    /// # Panics
    ///
    /// Never: a test reads the same bytes.
    #[must_use]
    pub fn of_papers() -> Self {
        #[expect(clippy::expect_used, reason = "the file is a part of the program")]
        Self::parse(include_str!("../claims.toml")).expect("the file is tested")
    }

    /// Parses the text of a file of claims.
    ///
    /// # Errors
    ///
    /// Returns an error for an unknown word or key, a repeated id, a rule which does not fit the relation, and a value which
    /// the rule cannot judge.
    pub fn parse(text: &str) -> Result<Self, ClaimsError> {
        let File { claim: claims } = toml::from_str(text)?;
        let mut seen = BTreeSet::new();
        for claim in &claims {
            let id = || claim.id.clone();
            if !seen.insert(claim.id.as_str()) {
                return Err(ClaimsError::Twice(id()));
            }
            let (rule, relation) = (claim.rule, claim.relation);
            if !rule.fits(relation) {
                let id = id();
                return Err(ClaimsError::Rule { id, rule, relation });
            }
            if !claim.value.is_finite() || (rule == Rule::Value && claim.value <= 0.0) {
                return Err(ClaimsError::Value(id()));
            }
        }
        Ok(Self { claims })
    }

    /// Returns all claims in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Claim> {
        self.claims.iter()
    }

    /// Returns the claim with this id, or `None` if there is none.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&Claim> {
        self.claims.iter().find(|claim| claim.id == id)
    }
}

impl Claim {
    /// Returns the paper's value with its relation and unit, such as "≥ 80.0 %".
    #[must_use]
    pub fn paper_value(&self) -> String {
        format!("{}{}", self.relation.sign(), self.unit.write(self.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "[[claim]]\nid = \"X1\"\npaper = \"FaST-GShare\"\nwhere = \"§1\"\nmetric = \"m\"\nunit = \"percent\"\n";

    fn one(rest: &str) -> Result<Claims, ClaimsError> {
        Claims::parse(&format!("{ONE}{rest}"))
    }

    #[test]
    fn all_claims_of_the_papers_are_listed() {
        let claims = Claims::of_papers();
        let ids: Vec<_> = claims.iter().map(|claim| claim.id.as_str()).collect();
        let expected = [
            "T01",
            "T02",
            "T03",
            "T04",
            "T05",
            "T06",
            "T07",
            "T07-block",
            "T08",
            "T09",
            "T10",
            "T11",
            "T22",
            "T24",
            "T25",
            "T26",
            "T27",
            "T39",
            "S06",
            "S07",
            "S10",
            "S11",
            "S14",
            "S17",
        ];
        assert_eq!(ids, expected);
        let structural = claims.iter().filter(|claim| claim.rule == Rule::Structural);
        let structural: Vec<_> = structural.map(|claim| claim.id.as_str()).collect();
        assert_eq!(structural, ["T04", "T25", "S06", "S10", "S11"]);
        let paper_value = |id| claims.get(id).unwrap().paper_value();
        assert_eq!(paper_value("T02"), "≥ 80.0 %");
        assert_eq!(paper_value("T10"), "about 35 ms");
        assert_eq!(paper_value("S10"), "9,282 MB");
        assert!(claims.get("T99").is_none());
    }

    #[test]
    fn a_rule_must_fit_its_relation() {
        assert!(one("relation = \"at-least\"\nvalue = 80\nrule = \"bound\"").is_ok());
        let wrong = one("relation = \"at-least\"\nvalue = 80\nrule = \"value\"");
        assert!(matches!(wrong, Err(ClaimsError::Rule { .. })));
        let nothing = one("relation = \"equal\"\nvalue = 0\nrule = \"value\"");
        assert_eq!(nothing, Err(ClaimsError::Value("X1".to_owned())));
        let endless = one("relation = \"at-least\"\nvalue = inf\nrule = \"bound\"");
        assert_eq!(endless, Err(ClaimsError::Value("X1".to_owned())));
    }

    #[test]
    fn refuses_unknown_words_and_repeated_ids() {
        let rest = "relation = \"less\"\nvalue = 0\nrule = \"order\"\n";
        assert!(one(rest).is_ok());
        assert!(matches!(
            one(&format!("{rest}tolerance = 0.5")),
            Err(ClaimsError::Parse(_))
        ));
        assert_eq!(
            one(&format!("{rest}{ONE}{rest}")),
            Err(ClaimsError::Twice("X1".to_owned()))
        );
    }
}
