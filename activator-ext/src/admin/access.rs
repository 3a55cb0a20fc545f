//! Whose token lets see what (design 4.3), as the Kubernetes API says: TokenReview, and for people SubjectAccessReview.

use std::collections::HashMap;
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
    /// The API does not answer, or too many tokens are under review.
    Unavailable,
}

/// What a client with a token sees, or why it sees nothing.
type Answer = Result<Scope, NoAccess>;

/// Reviews tokens, and keeps the answers for a while.
pub(crate) struct Access {
    client: Client,
    /// By token; with the time of the answer.
    known: Mutex<HashMap<String, (Instant, Answer)>>,
    reviews: Semaphore,
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

    /// Returns what a client with this token sees.
    ///
    /// # Errors
    /// Why it sees nothing.
    pub(crate) async fn scope(&self, token: &str) -> Answer {
        let now = Instant::now();
        {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((at, answer)) = known.get(token)
                && now.duration_since(*at) < CACHED
            {
                return answer.clone();
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
        if known.len() >= CACHED_MAX {
            known.retain(|_, (at, _)| now.duration_since(*at) < CACHED);
            if known.len() >= CACHED_MAX {
                known.clear();
            }
        }
        known.insert(token.to_owned(), (now, answer.clone()));
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
