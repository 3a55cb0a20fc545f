//! Whose token lets see what (design 4.3), as the Kubernetes API says: TokenReview, and for people SubjectAccessReview.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::Scope;

/// Tokens that pods get for Weir's own programs are for this audience.
const AUDIENCE: &str = "weir.dev";
/// An answer of the API holds for so long.
const CACHED: Duration = Duration::from_secs(60);
/// Answers that are kept.
const CACHED_MAX: usize = 1_024;
/// Refusals that are kept, apart from these: a flood of unknown tokens displaces no known one.
const REFUSED_MAX: usize = 256;
/// Bytes of a token, at most: those of service accounts have about 1,000.
const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// Tokens of one address that are refused within [`CACHED`], at most; further ones are not reviewed.
const REFUSALS_MAX: u32 = 16;
/// Addresses whose refusals are counted.
const ADDRESSES_MAX: usize = 1_024;
/// Tokens that are reviewed at once.
const REVIEWS_MAX: usize = 8;
/// A review takes no longer.
const REVIEW_MAX: Duration = Duration::from_secs(5);
/// The name of a service account begins so; its namespace follows.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Why a client sees nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoAccess {
    /// There is no token, or the API does not know it.
    Unauthenticated,
    /// This user may not `get gpufunctions`.
    Forbidden(String),
    /// Too many tokens of this address were refused a short while ago.
    TooMany,
    /// The API does not answer, or too many tokens are under review.
    Unavailable,
}

/// What a client with a token sees, or why it sees nothing.
type Answer = Result<Scope, NoAccess>;

/// Reviews tokens, and keeps the answers for a while.
pub(crate) struct Access {
    client: Client,
    known: Mutex<Known>,
    reviews: Semaphore,
}

/// Answers of the API, with their times.
#[derive(Default)]
struct Known {
    /// Of tokens that let see something.
    scopes: HashMap<String, (Instant, Scope)>,
    /// Of those that do not.
    refused: HashMap<String, (Instant, NoAccess)>,
    /// Refusals by the client's address, since a time.
    refusals: HashMap<IpAddr, (Instant, u32)>,
}

impl Known {
    /// Returns an answer that is not older than [`CACHED`].
    fn answer(&self, token: &str, now: Instant) -> Option<Answer> {
        let is_new = |at: Instant| now.duration_since(at) < CACHED;
        if let Some((at, scope)) = self.scopes.get(token) {
            return is_new(*at).then(|| Ok(scope.clone()));
        }
        let (at, refusal) = self.refused.get(token)?;
        is_new(*at).then(|| Err(refusal.clone()))
    }

    fn has_too_many(&self, from: IpAddr, now: Instant) -> bool {
        self.refusals
            .get(&from)
            .is_some_and(|(at, count)| now.duration_since(*at) < CACHED && *count >= REFUSALS_MAX)
    }

    fn insert(&mut self, token: &str, from: IpAddr, now: Instant, answer: &Answer) {
        match answer {
            Ok(scope) => {
                make_room(&mut self.scopes, CACHED_MAX, now);
                self.scopes.insert(token.to_owned(), (now, scope.clone()));
            }
            Err(refusal) => {
                make_room(&mut self.refused, REFUSED_MAX, now);
                self.refused
                    .insert(token.to_owned(), (now, refusal.clone()));
                make_room(&mut self.refusals, ADDRESSES_MAX, now);
                let (at, count) = self.refusals.entry(from).or_insert((now, 0));
                if now.duration_since(*at) >= CACHED {
                    (*at, *count) = (now, 0);
                }
                *count += 1;
            }
        }
    }
}

/// Drops what is old, and if that is not enough everything.
fn make_room<K: Eq + Hash, V>(map: &mut HashMap<K, (Instant, V)>, most: usize, now: Instant) {
    if map.len() >= most {
        map.retain(|_, (at, _)| now.duration_since(*at) < CACHED);
        if map.len() >= most {
            map.clear();
        }
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

impl Access {
    /// Asks the API that `client` speaks to.
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            known: Mutex::default(),
            reviews: Semaphore::new(REVIEWS_MAX),
        }
    }

    /// Returns what a client at this address sees with this token.
    ///
    /// # Errors
    /// Why it sees nothing.
    pub(crate) async fn scope(&self, token: &str, from: IpAddr) -> Answer {
        let now = Instant::now();
        if token.len() > TOKEN_BYTES_MAX {
            return Err(NoAccess::Unauthenticated);
        }
        {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(answer) = known.answer(token, now) {
                return answer;
            }
            if known.has_too_many(from, now) {
                return Err(NoAccess::TooMany);
            }
        }
        let Ok(_place) = self.reviews.try_acquire() else {
            return Err(NoAccess::Unavailable);
        };
        let answer = match timeout(REVIEW_MAX, self.review(token)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                tracing::warn!(%error, "a token cannot be reviewed");
                return Err(NoAccess::Unavailable);
            }
            Err(_) => return Err(NoAccess::Unavailable),
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(token, from, now, &answer);
        answer
    }

    async fn review(&self, token: &str) -> Result<Answer, kube::Error> {
        // A pod's token is for Weir alone, and says which namespace it is of.
        if let Some(user) = self.user(token, Some(AUDIENCE)).await? {
            let name = user.username.unwrap_or_default();
            let account = name.strip_prefix(SERVICE_ACCOUNT);
            let namespace = account.and_then(|account| Some(account.split_once(':')?.0.to_owned()));
            return Ok(match namespace {
                Some(namespace) => Ok(Scope::Namespace(namespace)),
                None => Err(NoAccess::Forbidden(name)),
            });
        }
        let Some(user) = self.user(token, None).await? else {
            return Ok(Err(NoAccess::Unauthenticated));
        };
        let name = user.username.clone().unwrap_or_default();
        let may = self.may_read(user).await?;
        Ok(if may {
            Ok(Scope::All)
        } else {
            Err(NoAccess::Forbidden(name))
        })
    }

    /// Returns whose token it is, if it is for this audience; without one, for the API itself.
    async fn user(
        &self,
        token: &str,
        audience: Option<&str>,
    ) -> Result<Option<UserInfo>, kube::Error> {
        let review = TokenReview {
            metadata: ObjectMeta::default(),
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences: audience.map(|audience| vec![audience.to_owned()]),
            },
            status: None,
        };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let review = reviews.create(&PostParams::default(), &review).await?;
        let status = review.status.unwrap_or_default();
        // An API without audiences says none: its word is not about this one.
        let is_for = audience.is_none_or(|audience| {
            let audiences = status.audiences.iter().flatten();
            audiences.into_iter().any(|own| own == audience)
        });
        let is_authenticated = status.authenticated == Some(true) && is_for;
        Ok(status.user.filter(|_| is_authenticated))
    }

    /// Whether a user may `get gpufunctions` in all namespaces.
    async fn may_read(&self, user: UserInfo) -> Result<bool, kube::Error> {
        let review = SubjectAccessReview {
            metadata: ObjectMeta::default(),
            spec: SubjectAccessReviewSpec {
                user: user.username,
                uid: user.uid,
                groups: user.groups,
                extra: user.extra,
                resource_attributes: Some(ResourceAttributes {
                    group: Some("weir.dev".to_owned()),
                    resource: Some("gpufunctions".to_owned()),
                    verb: Some("get".to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            status: None,
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = reviews.create(&PostParams::default(), &review).await?;
        Ok(review.status.is_some_and(|status| status.allowed))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    }

    #[test]
    fn unknown_tokens_displace_no_known_one() {
        let (mut known, now) = (Known::default(), Instant::now());
        known.insert("good", address(1), now, &Ok(Scope::All));
        for number in 0..10 * REFUSED_MAX {
            let refused = Err(NoAccess::Unauthenticated);
            known.insert(&format!("bad-{number}"), address(2), now, &refused);
        }
        assert_eq!(known.answer("good", now), Some(Ok(Scope::All)));
        assert!(known.refused.len() <= REFUSED_MAX);
        assert_eq!(known.answer("good", now + CACHED), None);
    }

    #[test]
    fn an_address_with_many_refusals_is_not_reviewed_for_a_while_and_others_are() {
        let (mut known, now) = (Known::default(), Instant::now());
        for number in 0..REFUSALS_MAX {
            assert!(!known.has_too_many(address(2), now));
            let refused = Err(NoAccess::Unauthenticated);
            known.insert(&format!("bad-{number}"), address(2), now, &refused);
        }
        assert!(known.has_too_many(address(2), now));
        assert!(!known.has_too_many(address(1), now));
        assert!(!known.has_too_many(address(2), now + CACHED));
        let refused = Err(NoAccess::Unauthenticated);
        known.insert("bad", address(2), now + CACHED, &refused);
        assert!(!known.has_too_many(address(2), now + CACHED));
    }
}
