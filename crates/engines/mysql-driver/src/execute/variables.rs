//! System variables of running servers.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use stateward_core::kind::Trouble;
use stateward_mysql::world::{Ordinal, Process};
use stateward_runtime::Failure;

use super::Executor;
use crate::client::server::Session;
use crate::client::{Error, code, sql};

impl Executor<'_> {
    pub(super) async fn set_variables(
        self,
        member: Ordinal,
        process: &Process,
        values: &BTreeMap<String, Option<String>>,
        hash: &str,
    ) -> Result<(), Failure> {
        let mut session = self.session(member).await?;
        for (name, value) in values {
            let set = set(&mut session, name, value.as_deref()).await;
            set.map_err(|error| self.refused(name, error))?;
        }
        let mut taken = self.means.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.insert(member, (process.clone(), hash.to_owned()));
        Ok(())
    }

    /// What MySQL says of a variable is the user's to correct.
    fn refused(self, name: &str, error: Error) -> Failure {
        let Error::Server { code, message } = &error else {
            return error.into();
        };
        let hint = match *code {
            code::UNKNOWN_VARIABLE => "this version of MySQL does not know it",
            code::READ_ONLY_VARIABLE => "it cannot be set in a running server",
            _ => message.as_str(),
        };
        Failure::Trouble(Trouble {
            reason: "InvalidConfig",
            message: format!("{name} in spec.config cannot be set: {hint}. Correct or remove it"),
        })
    }
}

async fn set(session: &mut Session<'_>, name: &str, value: Option<&str>) -> Result<(), Error> {
    // A variable of a component is named `component.variable`.
    let quoted: Vec<String> = name.split('.').map(sql::name).collect();
    let variable = quoted.join(".");
    let Some(value) = value else {
        return session.run(&format!("SET GLOBAL {variable} = DEFAULT")).await;
    };
    let written = session
        .run(&format!("SET GLOBAL {variable} = {}", sql::value(value)))
        .await;
    match written {
        // A text that looks like a number or a word.
        Err(error) if error.code() == Some(code::WRONG_TYPE) => {
            session
                .run(&format!("SET GLOBAL {variable} = {}", sql::text(value)))
                .await
        }
        written => written,
    }
}
