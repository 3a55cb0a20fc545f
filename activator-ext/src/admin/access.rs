//! Which tokens grant which scope (contracts §3), as reviewed by the Kubernetes API: TokenReview for all, and
//! SubjectAccessReview for users.

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

/// Audience of the tokens which are issued to pods for Weir's own programs.
const AUDIENCE: &str = "weir.dev";
/// Time for which a review's result is cached.
const CACHED: Duration = Duration::from_secs(60);
/// Largest number of cached grants.
const CACHED_MAX: usize = 1_024;
/// Largest number of cached refusals. They are cached apart from grants: a flood of unknown tokens evicts no known one.
const REFUSED_MAX: usize = 256;
/// Largest accepted token in bytes; those of service accounts have about 1,000.
const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// Largest number of refused tokens per address within [`CACHED`]; further ones are not reviewed.
const REFUSALS_MAX: u32 = 16;
/// Largest number of addresses with a count of refusals.
const ADDRESSES_MAX: usize = 1_024;
/// Largest number of tokens under review at a time.
const REVIEWS_MAX: usize = 8;
/// Longest time for a review.
const REVIEW_MAX: Duration = Duration::from_secs(5);
/// Prefix of a service account's name; its namespace follows.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// The reason why a client is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoAccess {
    /// There is no token, or the API does not know it.
    Unauthenticated,
    /// The user of this name may not `get gpufunctions`.
    Forbidden(String),
    /// Too many tokens of this address were refused within [`CACHED`].
    TooMany,
    /// The API does not answer, or too many tokens are under review.
    Unavailable,
}

/// The scope which a token grants, or the reason why it grants none.
type Answer = Result<Scope, NoAccess>;

/// Reviews tokens by the Kubernetes API, and caches the results for [`CACHED`].
pub(crate) struct Access {
    client: Client,
    cache: Mutex<ReviewCache>,
    reviews: Semaphore,
}

/// Cached results of reviews, with their times.
#[derive(Default)]
struct ReviewCache {
    /// Scopes by token.
    scopes: HashMap<String, (Instant, Scope)>,
    /// Refusals by token.
    refused: HashMap<String, (Instant, NoAccess)>,
    /// Number of refusals by the client's address, with the start of the counted period.
    refusals: HashMap<IpAddr, (Instant, u32)>,
}

impl ReviewCache {
    /// Returns the cached result for `token` if it is not older than [`CACHED`].
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

/// Makes room in a full map: removes outdated entries, or all entries if none is outdated.
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
    /// Returns a reviewer that uses the API of `client`.
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            cache: Mutex::default(),
            reviews: Semaphore::new(REVIEWS_MAX),
        }
    }

    /// Returns the scope that `token` grants to a client at the address `from`.
    ///
    /// # Errors
    ///
    /// Fails with the reason if it grants none.
    pub(crate) async fn scope(&self, token: &str, from: IpAddr) -> Answer {
        let now = Instant::now();
        if token.len() > TOKEN_BYTES_MAX {
            return Err(NoAccess::Unauthenticated);
        }
        {
            let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(answer) = cache.answer(token, now) {
                return answer;
            }
            if cache.has_too_many(from, now) {
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
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.insert(token, from, now, &answer);
        answer
    }

    async fn review(&self, token: &str) -> Result<Answer, kube::Error> {
        // A token for Weir's audience belongs to a pod; the account's name contains the pod's namespace.
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

    /// Returns the user of `token` if the token is valid for `audience`, or without one for the API itself.
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
        // An API server that ignores audiences returns none: its result does not count for this audience.
        let is_for = audience.is_none_or(|audience| {
            let audiences = status.audiences.iter().flatten();
            audiences.into_iter().any(|own| own == audience)
        });
        let is_authenticated = status.authenticated == Some(true) && is_for;
        Ok(status.user.filter(|_| is_authenticated))
    }

    /// Returns whether a user may `get gpufunctions` in all namespaces.
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
    fn unknown_tokens_evict_no_known_one() {
        let (mut cache, now) = (ReviewCache::default(), Instant::now());
        cache.insert("good", address(1), now, &Ok(Scope::All));
        for number in 0..10 * REFUSED_MAX {
            let refused = Err(NoAccess::Unauthenticated);
            cache.insert(&format!("bad-{number}"), address(2), now, &refused);
        }
        assert_eq!(cache.answer("good", now), Some(Ok(Scope::All)));
        assert!(cache.refused.len() <= REFUSED_MAX);
        assert_eq!(cache.answer("good", now + CACHED), None);
    }

    #[test]
    fn an_address_with_many_refusals_is_not_reviewed_for_a_while_and_other_addresses_are() {
        let (mut cache, now) = (ReviewCache::default(), Instant::now());
        for number in 0..REFUSALS_MAX {
            assert!(!cache.has_too_many(address(2), now));
            let refused = Err(NoAccess::Unauthenticated);
            cache.insert(&format!("bad-{number}"), address(2), now, &refused);
        }
        assert!(cache.has_too_many(address(2), now));
        assert!(!cache.has_too_many(address(1), now));
        assert!(!cache.has_too_many(address(2), now + CACHED));
        let refused = Err(NoAccess::Unauthenticated);
        cache.insert("bad", address(2), now + CACHED, &refused);
        assert!(!cache.has_too_many(address(2), now + CACHED));
    }
}
