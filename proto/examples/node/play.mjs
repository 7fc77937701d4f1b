// Plays one episode and prints its verdict: node play.mjs GYM_PROTO [ENDPOINT_JSON]
//
// The client is made from the contract at run time; nothing here knows more of the gym than gym.proto says. Address and
// token come from the file that a gym of this user leaves, unless another one is named.

import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { promisify } from "node:util";
import { randomUUID } from "node:crypto";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const state = process.env.GYM_STATE_DIR || `${process.env.XDG_STATE_HOME || `${homedir()}/.local/state`}/coding-gym`;
const [contract, endpointFile = `${state}/endpoint.json`] = process.argv.slice(2);
const { address, token, ca_file: authority } = JSON.parse(readFileSync(endpointFile, "utf8"));
const definition = loader.loadSync(contract, { keepCase: true, longs: Number, enums: String, defaults: true });
const { GymService } = grpc.loadPackageDefinition(definition).gym.v1;
const { createInsecure, createSsl } = grpc.credentials;
const gym = new GymService(address, authority ? createSsl(readFileSync(authority)) : createInsecure());
const metadata = new grpc.Metadata();
metadata.set("authorization", `Bearer ${token}`);
const call = (method, request) => promisify(gym[method].bind(gym))(request, metadata);

const episode = await call("CreateEpisode", {
  request_id: randomUUID(), // The same id again would give the same episode: a lost answer costs nothing.
  task_id: "bugfix/zero/share",
  toolset: "menu",
  seed: { run_seed: 0, group: "node", index: 0 },
});
for (const [turn, said] of ["read", "edit add_zero_guard", "submit"].entries()) {
  const action = { text: `<call> ${said} </call>` };
  const { observation } = await call("StepEpisode", { episode_id: episode.episode_id, turn, action });
  for (const result of observation.tool_results) console.log(`${said}: ${result.text.split("\n")[0]}`);
}
const { verdict } = await call("GradeEpisode", { episode_id: episode.episode_id });
console.log(`${verdict.status} ${verdict.hidden.passed} of ${verdict.hidden.total}`);
gym.close();
